"""Steps of tokens to text: stop strings, endings, log-probabilities, several sequences."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from quire import RequestOutputKind, SamplingParams
from quire.core.engine_request import EngineRequest
from quire.core.errors import FailureKind, RequestFailure
from quire.core.outputs import Logprob, RequestMetrics, RequestOutput
from quire.core.step import PromptLogprobs, SequenceResult, TokenLogprobs
from quire.engine.engine_output import EngineOutput
from quire.llm.outputs.output_processor import OutputProcessor
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer

END = 256


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


class Feed:
    """One request, fed token by token."""

    def __init__(self, tokenizer: Tokenizer, **params: Any) -> None:
        self.tokenizer = tokenizer
        self.processor = OutputProcessor(tokenizer)
        self.processor.add(EngineRequest("r", [1], SamplingParams(**params), prompt="p"))
        self.stopped: list[tuple[str, int]] = []

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def step(
        self,
        ids: list[int],
        index: int = 0,
        finish_reason: str | None = None,
        stop_reason: int | None = None,
        **result: Any,
    ) -> RequestOutput | None:
        """Feed one step's tokens of one sequence; return what callers see of it."""
        found = SequenceResult(ids, **result)
        item = EngineOutput("r", index, found, 0, RequestMetrics(), finish_reason, stop_reason)
        step = self.processor.process([item])
        self.stopped += step.stopped
        return step.outputs[0] if step.outputs else None

    def text(self, text: str, index: int = 0) -> RequestOutput | None:
        """Feed text one token a step; return the last state."""
        states = [self.step([token], index) for token in self.ids(text)]
        return [state for state in states if state is not None][-1]


def test_text_grows_and_never_shows_half_a_character(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer)
    texts = []
    for token in feed.ids("aé"):
        state = feed.step([token])
        assert state is not None
        texts.append(state.outputs[0].text)
    assert texts == ["a", "a", "aé"]
    state = feed.step([feed.ids("é")[0]], finish_reason="length")
    assert state is not None and state.finished
    assert state.outputs[0].text == "aé\ufffd"


@pytest.mark.parametrize("include, shown", [(False, "one "), (True, "one STOP")])
def test_a_stop_string_ends_the_sequence_before_the_next_step(
    tokenizer: Tokenizer, include: bool, shown: str
) -> None:
    feed = Feed(tokenizer, stop=["STOP"], include_stop_str_in_output=include, max_tokens=50)
    state = feed.text("one STO")
    assert state is not None and state.outputs[0].text == "one "
    state = feed.text("P")
    assert state is not None and state.finished
    output = state.outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == (shown, "stop", "STOP")
    assert output.token_ids == feed.ids("one STOP")
    assert feed.stopped == [("r", 0)]
    assert feed.step(feed.ids("x")) is None  # on its way when it was stopped


@pytest.mark.parametrize("reason", [None, "stop", "length"])
def test_tokens_behind_a_stop_string_are_not_the_sequences(
    tokenizer: Tokenizer, reason: str | None
) -> None:
    """A step may bring several tokens, and the engine may have ended the sequence with them."""
    feed = Feed(tokenizer, stop=["STOP"], max_tokens=50)
    ids = feed.ids("one STOP and more")
    state = feed.step([*ids, END] if reason == "stop" else ids, finish_reason=reason)
    assert state is not None and state.finished
    (output,) = state.outputs
    assert (output.text, output.token_ids) == ("one ", feed.ids("one STOP"))
    assert (output.finish_reason, output.stop_reason) == ("stop", "STOP")
    assert feed.stopped == ([("r", 0)] if reason is None else [])


def test_text_held_back_is_shown_when_no_stop_string_came(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, stop=["STOP"])
    state = feed.text("a ST")
    assert state is not None and state.outputs[0].text == "a "
    state = feed.step(feed.ids("O"), finish_reason="length")
    assert state is not None and state.outputs[0].text == "a STO"
    assert feed.stopped == []


def test_a_stop_string_in_the_last_step_needs_no_stop(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, stop=["!"])
    state = feed.step(feed.ids("!"), finish_reason="length")
    assert state is not None
    assert (state.outputs[0].finish_reason, state.outputs[0].stop_reason) == ("stop", "!")
    assert feed.stopped == []


def test_min_tokens_puts_stop_strings_off(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, stop=["!"], min_tokens=3)
    state = feed.text("!!!")
    assert state is not None and not state.finished and state.outputs[0].text == "!!!"
    state = feed.text("a")
    assert state is not None and not state.finished
    state = feed.text("!")
    assert state is not None and state.finished and state.outputs[0].text == "!!!a"


@pytest.mark.parametrize("together", [False, True])
def test_a_stop_string_may_begin_before_min_tokens(tokenizer: Tokenizer, together: bool) -> None:
    """Its first part used to be shown and the whole was not found."""
    feed = Feed(tokenizer, stop=["STOP"], min_tokens=3)
    for text in ["aSTOP"] if together else "aSTOP":
        state = feed.text(text)
    assert state is not None and state.finished
    assert (state.outputs[0].text, state.outputs[0].stop_reason) == ("a", "STOP")


def test_a_stop_token_is_listed_but_not_shown(tokenizer: Tokenizer) -> None:
    for include, shown in ((False, "a"), (True, "ab")):
        feed = Feed(tokenizer, include_stop_str_in_output=include)
        feed.text("a")
        ids = feed.ids("b")
        state = feed.step(ids, finish_reason="stop", stop_reason=ids[0])
        assert state is not None
        assert state.outputs[0].text == shown
        assert state.outputs[0].token_ids == feed.ids("ab")
        assert state.outputs[0].stop_reason == ids[0]


def test_end_of_sequence_is_not_in_the_text(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, skip_special_tokens=False)
    feed.text("a")
    state = feed.step([END], finish_reason="stop")
    assert state is not None
    assert (state.outputs[0].text, state.outputs[0].token_ids[-1]) == ("a", END)


def test_without_detokenizing_there_are_only_ids(tokenizer: Tokenizer) -> None:
    state = Feed(tokenizer, detokenize=False).text("abc")
    assert state is not None
    assert (state.outputs[0].text, len(state.outputs[0].token_ids)) == ("", 3)


def test_logprobs_name_the_sampled_token_first(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, logprobs=2, prompt_logprobs=1)
    a, b, c = feed.ids("abc")
    entry = TokenLogprobs(c, -3.0, 7, [(a, -0.5), (b, -1.0)])
    prompt = PromptLogprobs(1, [TokenLogprobs(a, -0.25, 1, [(a, -0.25)])])
    state = feed.step([c], logprobs=[entry], prompt_logprobs=prompt)
    assert state is not None
    assert state.outputs[0].logprobs == [
        {c: Logprob(-3.0, 7, "c"), a: Logprob(-0.5, 1, "a"), b: Logprob(-1.0, 2, "b")}
    ]
    assert list((state.outputs[0].logprobs or [])[0]) == [c, a, b]
    assert state.outputs[0].cumulative_logprob == -3.0
    assert state.prompt_logprobs == [None, {a: Logprob(-0.25, 1, "a")}]


def test_sequences_end_one_by_one_and_the_request_with_the_last(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, n=2, stop=["!"])
    state = feed.text("a!", index=1)
    assert state is not None and not state.finished
    assert [output.finish_reason for output in state.outputs] == [None, "stop"]
    assert feed.stopped == [("r", 1)]
    state = feed.step(feed.ids("b"), index=0, finish_reason="length")
    assert state is not None and state.finished
    assert [output.text for output in state.outputs] == ["b", "a"]


def test_states_do_not_change_after_they_were_given(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer)
    first = feed.text("a")
    feed.text("b")
    assert first is not None
    assert (first.outputs[0].token_ids, first.outputs[0].text) == (feed.ids("a"), "a")


def test_errors_carry_their_message(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer)
    state = feed.step(
        [], finish_reason="error", error=RequestFailure(FailureKind.ENGINE, "bad luck")
    )
    assert state is not None and state.finished
    assert (state.error, state.outputs[0].finish_reason) == ("bad luck", "error")


def test_only_final_states_on_request(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, output_kind=RequestOutputKind.FINAL_ONLY)
    assert feed.step(feed.ids("a")) is None
    state = feed.step(feed.ids("b"), finish_reason="length")
    assert state is not None and state.outputs[0].text == "ab"


def test_a_failed_engine_ends_every_request(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, n=2, stop=["!"])
    feed.text("a!", index=0)
    (state,) = feed.processor.end_all("error", RequestFailure(FailureKind.ENGINE, "it broke"))
    assert state.finished and state.error == "it broke"
    assert [output.finish_reason for output in state.outputs] == ["stop", "error"]
    assert feed.processor.end_all("error") == []


def test_logprobs_and_prompt_logprobs_are_cut_with_tokens_of_one_step(tokenizer: Tokenizer) -> None:
    """Several tokens of a step were split at stop strings and their log-probabilities repeated."""
    feed = Feed(tokenizer, stop=["b"], logprobs=0, prompt_logprobs=0)
    ids = feed.ids("abc")
    entries = [TokenLogprobs(token_id, -1.0, 1, []) for token_id in ids]
    prompt = PromptLogprobs(1, [TokenLogprobs(ids[0], -0.25, 1, [])])
    state = feed.step(ids, logprobs=entries, prompt_logprobs=prompt, num_accepted=2)
    assert state is not None and state.finished
    output = state.outputs[0]
    assert (output.text, output.token_ids, output.stop_reason) == ("a", ids[:2], "b")
    assert [list(found) for found in output.logprobs or ()] == [[ids[0]], [ids[1]]]
    assert output.cumulative_logprob == -2.0
    assert state.prompt_logprobs is not None and len(state.prompt_logprobs) == 2


TEXT = "é 😀 one STO two € STOP and what comes after"


def random_steps(tokenizer: Tokenizer, seed: int) -> list[tuple[list[int], int, dict[str, Any]]]:
    """Two sequences' steps of one to three tokens, with log-probabilities and a chunked prompt."""
    random, ids = Random(seed), tokenizer.encode(TEXT)

    def entry(token_id: int) -> TokenLogprobs:
        return TokenLogprobs(token_id, -random.random(), 2, [(token_id + 1, -0.1)])

    steps: list[tuple[list[int], int, dict[str, Any]]] = [
        ([], 0, {"prompt_logprobs": PromptLogprobs(start, [entry(start), entry(start + 1)])})
        for start in (1, 3)
    ]
    places = [0, 0]
    while min(places) < len(ids):
        index = random.randrange(2)
        new = ids[places[index] : places[index] + random.randint(1, 3)]
        if new:
            places[index] += len(new)
            ending = {"finish_reason": "length"} if places[index] == len(ids) else {}
            steps.append((new, index, {"logprobs": [entry(i) for i in new], **ending}))
    return steps


@pytest.mark.parametrize("stop", [None, "STOP"])
@pytest.mark.parametrize("seed", range(8))
def test_deltas_hold_only_what_is_new_and_add_up(
    tokenizer: Tokenizer, seed: int, stop: str | None
) -> None:
    """As counted in token ids, texts and log-probabilities: no output carries an earlier one's."""
    params = {"n": 2, "logprobs": 1, "prompt_logprobs": 1, "stop": stop, "max_tokens": 100}
    whole = Feed(tokenizer, **params)
    feed = Feed(tokenizer, **params, output_kind=RequestOutputKind.DELTA)
    merged: RequestOutput | None = None
    state: RequestOutput | None = None
    num_ids, text = 0, ""
    for new, index, news in random_steps(tokenizer, seed):
        state = whole.step(new, index, **news) or state
        delta = feed.step(new, index, **news)
        if delta is None:
            continue
        assert [completion.index for completion in delta.outputs] == ([index] if new else [])
        for completion in delta.outputs:
            assert len(completion.token_ids) == len(completion.logprobs or []) <= len(new)
            num_ids += len(completion.token_ids)
            text += completion.text
        if merged is None:
            merged = delta
        else:
            merged.merge(delta)
        assert merged.prompt_logprobs == state.prompt_logprobs if state is not None else False
    assert state is not None and state.finished
    assert merged == state
    assert num_ids == sum(len(completion.token_ids) for completion in state.outputs)
    assert len(text) == sum(len(completion.text) for completion in state.outputs)
    assert feed.stopped == whole.stopped


def test_an_abort_ends_deltas_of_what_had_not_ended(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, n=2, stop=["!"], output_kind=RequestOutputKind.DELTA)
    feed.text("ab!", index=0)
    feed.text("cd", index=1)
    ending = feed.processor.end("r", "timeout")
    assert ending is not None and ending.finished
    assert [(o.index, o.text, o.token_ids, o.finish_reason) for o in ending.outputs] == [
        (1, "", [], "timeout")
    ]


def test_deltas_share_the_prompt_and_nothing_else(tokenizer: Tokenizer) -> None:
    feed = Feed(tokenizer, output_kind=RequestOutputKind.DELTA)
    ids = feed.ids("ab")
    first, second = feed.step(ids), feed.step(ids)
    assert first is not None and second is not None
    assert first.prompt_token_ids is second.prompt_token_ids
    first.merge(second)
    assert (first.outputs[0].text, second.outputs[0].text) == ("abab", "ab")
    assert ids == feed.ids("ab")
