"""A sequence's result cut into parts: each thing about a token goes with it."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from quire.core.step import PromptLogprobs, SequenceResult, TokenLogprobs


def result(num_accepted: int, num_drawn: int, num_forced: int) -> SequenceResult:
    """A result whose entries name their tokens; those that were forced have none."""
    count = num_accepted + num_drawn + num_forced
    entries = [TokenLogprobs(i, -1.0, 1, []) for i in range(num_accepted + num_drawn)]
    return SequenceResult(
        list(range(count)), num_accepted, num_forced, entries, PromptLogprobs(1, [])
    )


@pytest.mark.parametrize(("start", "stop"), [*combinations_with_replacement(range(7), 2)])
def test_counts_and_logprobs_of_a_part_are_its_tokens(start: int, stop: int) -> None:
    part = result(3, 1, 2).part(start, stop)
    assert part.token_ids == list(range(start, stop))
    assert part.num_accepted == sum(i < 3 for i in part.token_ids)
    assert part.num_forced == sum(i >= 4 for i in part.token_ids)
    assert [entry.token_id for entry in part.logprobs or ()] == [i for i in part.token_ids if i < 4]


def test_what_is_about_the_prompt_is_in_the_first_part_alone() -> None:
    whole = result(0, 1, 1)
    parts = [whole.part(i, i + 1) for i in range(2)]
    assert [part.prompt_logprobs for part in parts] == [whole.prompt_logprobs, None]
