"""A proposer that raises costs its proposals, and no answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.scripted_proposer import ScriptedProposer, use_script
from quire import LLM, SamplingParams
from quire.kernels.token_table import IntArray
from quire.speculative.proposer import Draw

PROMPTS = [[5, 9, 30, 7], [8, 8, 3], [40, 41, 42, 43, 44]]
FAILED = 'spec_decode_num_failed_proposals{method="medusa"}'
HELD = 'spec_decode_num_accepted_tokens{method="medusa"}'

Create = Callable[..., LLM]


class FailingProposer(ScriptedProposer):
    """Fails in every other call, when it has drawn and written something."""

    num_calls = 0

    def propose(self, rows: IntArray, most: IntArray, draw: Draw) -> IntArray:
        """Propose, or raise."""
        FailingProposer.num_calls += 1
        counts = super().propose(rows, most, draw)
        if FailingProposer.num_calls % 2:
            self._table.token_ids[rows, self._table.num_tokens[rows]] = -1
            raise ValueError("no more of this")
        return counts


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_requests_go_on_without_proposals(
    create_llm: Create,
    monkeypatch: pytest.MonkeyPatch,
    quire_log: list[logging.LogRecord],
    acceptance: str,
) -> None:
    own = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, logprobs=1)
    llm = create_llm()
    plain = [o.outputs[0] for o in llm.generate(PROMPTS, own)]
    script: list[Sequence[int]] = [
        [*prompt, *answer.token_ids] for prompt, answer in zip(PROMPTS, plain, strict=True)
    ]
    monkeypatch.setattr("benchmarks.scripted_proposer.ScriptedProposer", FailingProposer)
    settings: dict[str, Any] = {"num_speculative_tokens": 3, "adaptive": False}
    FailingProposer.num_calls = 0
    controller = use_script(llm.engine, script, 0.9, acceptance=acceptance, **settings)
    found = [o.outputs[0] for o in llm.generate(PROMPTS, own)]
    assert [(o.token_ids, o.logprobs, o.finish_reason) for o in found] == [
        (o.token_ids, o.logprobs, o.finish_reason) for o in plain
    ]
    assert controller.samples()[HELD] > 20
    assert llm.engine.stats()[FAILED] == (FailingProposer.num_calls + 1) // 2 > 3
    errors = [record for record in quire_log if record.levelno == logging.ERROR]
    (error,) = errors
    assert error.getMessage().startswith("[speculation] medusa failed to propose")
    assert error.exc_info is not None and "no more of this" in str(error.exc_info[1])
