"""A step fails because of one request: that one ends, the others get what they would have had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.models.decoder import Decoder
from quire.runner.step.sampling_state import SamplingState

POISON = 300  # no request draws it
ALLOWED = list(range(256))


class PanicException(BaseException):
    """As Rust libraries raise it: no ``Exception``."""


def params(**settings: Any) -> SamplingParams:
    defaults = {"max_tokens": 12, "ignore_eos": True, "seed": 1, "allowed_token_ids": ALLOWED}
    return SamplingParams(**{**defaults, **settings})


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[BaseException]], list[int]]:
    """Have every step fail that holds the poison; return the sizes of those that did."""

    def arm(error: type[BaseException]) -> list[int]:
        failed: list[int] = []
        healthy = Decoder.forward

        def forward(self: Decoder, batch: Any, kv_cache: Any, *rest: Any) -> Any:
            fails = bool((self.backend.to_numpy(batch.input_ids) == POISON).any())
            if not fails or error is not RuntimeError:  # else before the cache is written
                hidden = healthy(self, batch, kv_cache, *rest)
            if fails:
                failed.append(len(batch.seq_lens))
                raise error("injected fault")
            return hidden

        monkeypatch.setattr(Decoder, "forward", forward)
        return failed

    return arm


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, PanicException])
@pytest.mark.parametrize("takes_more", [True, False])
def test_one_request_fails_its_step(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    poison: Callable[[type[BaseException]], list[int]],
    error: type[BaseException],
    takes_more: bool,
) -> None:
    """Every kind of neighbour; some share blocks that the failed one fills in the same step."""
    shared, *own = prompts(40, 20, 35, 3, 50, 10, seed=3)
    kinds = [
        params(),
        params(n=3, temperature=1.0),
        params(logprobs=2, prompt_logprobs=1),
        params(pooling="mean", max_tokens=None, allowed_token_ids=None),
        params(structured_outputs=StructuredOutputs(regex="[ab]{6}c{4}"), ignore_eos=False,
               allowed_token_ids=None),
        params(repetition_penalty=1.3, temperature=0.7),
    ]  # fmt: skip
    work = [own[0], own[1], own[2], own[3], own[4], shared]
    settings: dict[str, Any] = {
        "block_size": 4,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "mixed_prefill_tokens": 512,
        "takes_more": takes_more,
    }
    expected = create_llm(**settings).generate(work, kinds)
    failed = poison(error)
    llm = create_llm(**settings)
    bad = [*shared[:36], POISON, 1, 2]
    outputs = llm.generate([bad, *work], [params(n=2), *kinds])
    victim = outputs.pop(0)
    assert [o.finish_reason for o in victim.outputs] == ["error", "error"]
    assert ("[memory]" if error is MemoryError else "injected fault") in (victim.error or "")
    for output, other in zip(outputs, expected, strict=True):
        assert output.error is None
        assert (output.outputs, output.embedding) == (other.outputs, other.embedding)
        assert output.prompt_logprobs == other.prompt_logprobs
    assert max(failed) > 1 and failed[-1] == 1, "it was looked for"
    # Nothing of it is left in the cache.
    again = llm.generate(work, kinds)
    assert [o.outputs for o in again] == [o.outputs for o in expected]
    assert llm.engine.stats()["kv_cache_usage_perc"] == 0


def test_fifty_requests_fail_one_after_the_other(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    poison: Callable[[type[BaseException]], list[int]],
) -> None:
    work = prompts(*[9, 30, 17, 24] * 5)
    expected = create_llm().generate(work, params(max_tokens=40))
    poison(MemoryError)
    llm = create_llm(takes_more=True)
    finished: dict[str, Any] = {}
    for index, prompt in enumerate(work):
        llm.engine.add_request(f"r{index}", {"prompt_token_ids": prompt}, params(max_tokens=40))
    for number in range(50):
        bad = {"prompt_token_ids": [5] * (number % 20) + [POISON] + [6] * (number % 7)}
        llm.engine.add_request(f"bad{number}", bad, params())
        finished |= {o.request_id: o for o in llm.engine.step() if o.finished}
    while llm.engine.has_unfinished_requests():
        finished |= {o.request_id: o for o in llm.engine.step() if o.finished}
    for number in range(50):
        assert finished[f"bad{number}"].outputs[0].finish_reason == "error"
    for index, output in enumerate(expected):
        assert finished[f"r{index}"].outputs == output.outputs


def test_a_request_that_cannot_be_prepared_fails_alone(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = prompts(20, 12)
    expected = create_llm().generate(work, params())
    healthy = SamplingState.set

    def set_row(self: SamplingState, row: int, settings: SamplingParams, seed: int) -> None:
        if settings.min_p:
            raise MemoryError
        healthy(self, row, settings, seed)

    monkeypatch.setattr(SamplingState, "set", set_row)
    llm = create_llm()
    outputs = llm.generate([work[0], work[1], work[1]], [params(), params(min_p=0.5), params()])
    assert (outputs[1].error or "").startswith("[memory]")
    assert [outputs[0].outputs, outputs[2].outputs] == [o.outputs for o in expected]


def test_a_fault_that_passes_ends_no_request(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = prompts(20, 35, 7)
    llm = create_llm()
    expected = llm.generate(work, params())
    healthy, calls = Decoder.forward, iter(range(10**6))

    def forward(self: Decoder, batch: Any, kv_cache: Any, *rest: Any) -> Any:
        if next(calls) % 5 == 4:
            raise MemoryError
        return healthy(self, batch, kv_cache, *rest)

    monkeypatch.setattr(Decoder, "forward", forward)
    assert [o.outputs for o in llm.generate(work, params())] == [o.outputs for o in expected]


def test_when_every_request_fails_it_is_the_engine(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = create_llm()

    def forward(*_: Any) -> Any:
        raise RuntimeError("nothing works")

    monkeypatch.setattr(Decoder, "forward", forward)
    with pytest.raises(Exception, match="nothing works"):
        llm.generate(prompts(20, 10), params())


@pytest.mark.usefixtures("dear_computing")
@pytest.mark.parametrize("is_cut", [False, True])
def test_stored_blocks_that_are_missing_or_cut_are_computed(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]], is_cut: bool
) -> None:
    """A store that has lost blocks used to end the step, and with it the engine."""
    work = prompts(40, 45, 5)
    llm = create_llm(
        block_size=4, num_gpu_blocks_override=17, max_model_len=64, kv_offload_bytes=2**20
    )
    expected = [llm.generate(prompt, params())[0].outputs for prompt in work]
    tiers, calls = llm.engine.executor.tiers, iter(range(10**6))
    healthy = tiers.get

    def get(block_hash: bytes) -> Any:
        found = healthy(block_hash)
        if next(calls) % 4 == 3:
            tiers._ram.clear()
            return found[:5] if is_cut else tiers._ram.get(block_hash)
        return found

    tiers.get = get
    for _ in range(3):
        outputs = [llm.generate(prompt, params())[0].outputs for prompt in work]
        assert outputs == expected
    assert next(calls) > 4
