"""Tokens proposed for answers with a grammar change nothing but the number of steps."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.scripted_proposer import use_script
from quire import LLM, SamplingParams, StructuredOutputs
from quire.runner.step import mask_threads
from quire.runner.step.grammar_lookahead import GrammarLookahead
from quire.store.hub import resolve_model
from quire.text.grammars.grammar import SequenceMatcher
from tests.integration.conftest import once, share
from tests.sizes import sized

pytestmark = pytest.mark.usefixtures("patient")
CALL = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 20, "maxLength": 30},
        "days": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "schema": {"json": CALL},
    "object": {"json_object": True},
    "regex": {"regex": "(year: (19|20)[0-9]{2}; ){3,9}end of the list [a-f ]{20,60}"},
    "tools": {
        "grammar": 'start: "<tool_call>" call "</tool_call>"\n'
        f"call: %json {json.dumps({'type': 'object', 'properties': {'arguments': CALL}})}"
    },
}
HOW: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "seeded": {"seed": 5, "n": 3, "logprobs": 0},
    "penalized": {
        "seed": 1, "top_p": 0.9, "repetition_penalty": 1.3, "bad_words": ["zq", "1 "], "logprobs": 0
    },
    "forced": {"seed": 3, "n": 2},
}  # fmt: skip
MODELS = ["tiny-llama", "tiny-gpt2", "quire-tiny"]
PROMPT = "Who is Anna? Tell me about her: "
HELD = 'spec_decode_num_accepted_tokens{method="medusa"}'
TRIED = 'spec_decode_num_draft_tokens{method="medusa"}'
Create = Callable[..., LLM]


def of(name: str, **settings: Any) -> SamplingParams:
    constraint = StructuredOutputs(**CONSTRAINTS[name])
    return SamplingParams(
        **{"max_tokens": sized(80, 120), "structured_outputs": constraint, **settings}
    )


def run(llm: LLM, params: list[SamplingParams]) -> tuple[list[Any], int]:
    """Return the outputs and the number of steps."""
    stats = llm.engine.engine.scheduler.stats
    before = stats.num_steps
    outputs = llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    return [(output.error, output.outputs) for output in outputs], stats.num_steps - before


def propose(llm: LLM, outputs: list[Any], rate: float) -> Callable[[], list[int]]:
    """Have answers proposed, right tokens at a rate; return how to ask for tried and held ones."""
    prompt = llm.get_tokenizer().encode(PROMPT)
    answers = [[*prompt, *one.token_ids] for _, sequences in outputs for one in sequences]
    control = use_script(llm.engine, answers, rate, num_speculative_tokens=4, adaptive=False)
    return lambda: [int(control.samples()[name]) for name in (TRIED, HELD)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", HOW)
def test_answers_are_the_same_in_fewer_steps(create_llm: Create, model: str, how: str) -> None:
    folder: Any = resolve_model(model) if model == "quire-tiny" else model
    plain, speculating = (create_llm(folder) for _ in range(2))
    for name in share(CONSTRAINTS, MODELS.index(model) + [*HOW].index(how), 4, {}):
        params = [of(name, **HOW[how])]
        expected, num_steps = run(plain, params)
        assert expected[0][0] is None
        for rate in (1.0, 0.7):
            counts = propose(speculating, expected, rate)
            found, fewer = run(speculating, params)
            assert found == expected, (name, rate)
            num_tried, num_held = counts()
            assert num_held > 0, (name, rate)
            assert fewer < num_steps, (name, rate)
            if rate == 1.0 and how != "forced":
                assert fewer < 0.5 * num_steps, name
                # But for what comes after a stop, which only sequences of others have.
                assert num_held > 0.9 * num_tried, name


def test_what_a_grammar_forbids_is_not_computed(create_llm: Create) -> None:
    """Its text has no choice, so each wrong token is forbidden; the model draws every right one."""
    plain, speculating = (create_llm() for _ in range(2))
    params = [
        SamplingParams(
            max_tokens=60, logprobs=1, structured_outputs=StructuredOutputs(regex="a{50}")
        )
    ]
    expected, num_steps = run(plain, params)
    counts = propose(speculating, expected, 0.0)
    assert run(speculating, params) == (expected, num_steps)
    assert counts() == [0, 0]


def test_what_leaves_no_token_ends_with_the_same_error(create_llm: Create) -> None:
    plain, speculating = (create_llm() for _ in range(2))
    possible = [of("regex", seed=seed, logprobs=0) for seed in range(4)]
    params = [of("regex", seed=seed, logprobs=0, bad_words=["d"]) for seed in range(4)]
    expected, _ = run(plain, params)
    assert all(error for error, _ in expected)
    counts = propose(speculating, run(plain, possible)[0], 1.0)
    assert run(speculating, params)[0] == expected
    assert counts()[1] > 0


def test_a_batch_of_all_kinds(create_llm: Create) -> None:
    """With free requests among them, more than run at once, some preempted, in small chunks."""
    work = [
        of(name, **{**HOW[how], "n": 1 + i % 2})
        for i, (name, how) in enumerate((n, h) for n in CONSTRAINTS for h in HOW if h != "greedy")
    ]
    work += [SamplingParams(max_tokens=40, seed=9, ignore_eos=True, logprobs=1)] * 3
    expected, num_steps = run(create_llm(), work)
    for settings in ({}, {"num_gpu_blocks_override": sized(30, 40), "looks_ahead": False},
                     {"max_num_batched_tokens": 24, "block_size": 8}, {"threads": 2}):  # fmt: skip
        llm = create_llm(**settings)
        counts = propose(llm, expected, 0.8)
        found, _ = run(llm, work)
        assert found == expected, settings
        assert counts()[1] > 100
        if "looks_ahead" in settings:
            assert llm.engine.engine.scheduler.stats.num_preemptions > 0


def test_a_grammar_that_waits_after_a_proposed_token_holds_up_no_other_request(
    create_llm: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, speculating = (create_llm() for _ in range(2))
    free = SamplingParams(max_tokens=60, seed=9, ignore_eos=True)
    work = [of("schema", seed=1, logprobs=0), of("regex", seed=2, logprobs=0), free]
    expected, _ = run(plain, work)
    propose(speculating, expected, 1.0)
    monkeypatch.setattr(mask_threads, "SECONDS_BESIDES", 0.05)
    gate, held = threading.Event(), threading.Event()
    healthy = SequenceMatcher.allowed

    def allowed(self: SequenceMatcher, new_ids: list[int]) -> bytes:
        mask = healthy(self, new_ids)
        if self.num_taken == 10 and not held.is_set():  # of the first request
            held.set()
            assert threading.current_thread().name == "quire-masks"
            assert gate.wait(60)
        return mask

    monkeypatch.setattr(SequenceMatcher, "allowed", allowed)
    engine = speculating.engine
    for i, params in enumerate(work):
        engine.add_request(str(i), PROMPT, params)
    finished: dict[str, Any] = {}
    while len(finished) < len(work):
        finished |= {o.request_id: o for o in engine.step() if o.finished}
        if len(finished) == len(work) - 1:
            assert held.is_set()
            gate.set()
    for i, (_, outputs) in enumerate(expected):
        assert [(o.token_ids, o.logprobs) for o in finished[str(i)].outputs] == [
            (o.token_ids, o.logprobs) for o in outputs
        ]


def test_a_limit_after_a_proposed_token_fails_no_request(
    create_llm: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matcher runs into one whenever it follows a token that is only proposed."""
    plain, speculating = (create_llm() for _ in range(2))
    params = [of("schema", **HOW["seeded"]), of("regex", **HOW["penalized"])]
    expected, num_steps = run(plain, params)
    propose(speculating, expected, 1.0)
    failed: list[int] = []

    def follow(self: GrammarLookahead) -> None:
        self.matcher.allowed(list(self._tokens[:1]))
        self.matcher.fail("[structured_outputs] a limit")
        failed.append(1)

    monkeypatch.setattr(GrammarLookahead, "_follow", follow)
    assert run(speculating, params) == (expected, num_steps)
    assert len(failed) > 50


@pytest.mark.parametrize(
    "method", [{"method": "ngram"}, {"method": "self", "quantization": "int8"}]
)
def test_what_real_proposers_propose(create_llm: Create, method: dict[str, Any]) -> None:
    """Drafts after the first are drawn without the grammar, which then forbids some of them."""
    folder = resolve_model("quire-tiny")
    params = [of(name, **HOW[how]) for name in CONSTRAINTS for how in ("greedy", "seeded")]
    plain = once(lambda: run(create_llm(folder, max_num_seqs=16), params), "real proposers")
    expected, num_steps = plain
    llm = create_llm(folder, max_num_seqs=16, speculative_config={**method, "adaptive": False})
    found, fewer = run(llm, params)
    assert found == expected
    assert llm.engine.stats()[f'spec_decode_num_accepted_tokens{{method="{method["method"]}"}}'] > 0
    assert fewer < num_steps
