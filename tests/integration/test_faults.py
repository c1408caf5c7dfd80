"""One request goes wrong; its neighbours get exactly what they would have had."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.checkpoint import Checkpoint

POISON = 300  # a token no request samples: its embedding is not a number
ALLOWED = list(range(256))


@pytest.fixture
def poisoned(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkpoint whose embedding of ``POISON`` is NaN."""
    folder = tmp_path / "poisoned"
    shutil.copytree(checkpoint(), folder)
    entry = Checkpoint(folder).entry("model.embed_tokens.weight")
    with (folder / "model.safetensors").open("r+b") as file:
        width = entry.shape[1]
        file.seek(entry.begin + POISON * width * 4)
        file.write(np.full(width, np.nan, np.float32).tobytes())
    return folder


def params(**settings: object) -> SamplingParams:
    return SamplingParams(
        max_tokens=12,
        ignore_eos=True,
        seed=1,
        logprobs=2,
        allowed_token_ids=ALLOWED,
        **settings,  # type: ignore[arg-type]
    )


def test_logits_that_are_no_numbers_end_one_request(
    create_llm: Callable[..., LLM], poisoned: Path, prompts: Callable[..., list[list[int]]]
) -> None:
    first, second = prompts(20, 35)
    expected = create_llm(poisoned).generate([first, second], params())
    # Few blocks, so that those of the failed request are used again at once.
    llm = create_llm(poisoned, num_gpu_blocks_override=14)
    bad = [5, POISON, 6] * 6
    outputs = llm.generate([first, bad, second], params())
    assert outputs[1].outputs[0].finish_reason == "error"
    assert "finite" in (outputs[1].error or "")
    assert [o.outputs for o in (outputs[0], outputs[2])] == [o.outputs for o in expected]
    for _ in range(3):
        again = llm.generate([first, second], params())
        assert [o.outputs for o in again] == [o.outputs for o in expected]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_that_are_no_numbers_end_one_request(
    create_llm: Callable[..., LLM],
    poisoned: Path,
    prompts: Callable[..., list[list[int]]],
    pooling: str,
) -> None:
    (prompt,) = prompts(20)
    embed = SamplingParams(pooling=pooling, max_tokens=None)
    llm = create_llm(poisoned)
    (expected,) = llm.generate([prompt], embed)
    good, bad, same = llm.generate([prompt, [5, POISON, 6] * 6, prompt], embed)
    assert good.embedding == same.embedding == expected.embedding
    assert expected.embedding is not None
    assert bad.outputs[0].finish_reason == "error" and bad.embedding is None
    assert bad.error is not None and "[pooling] hidden states must be finite" in bad.error


def test_all_sequences_of_a_failed_request_end(
    create_llm: Callable[..., LLM], poisoned: Path
) -> None:
    llm = create_llm(poisoned)
    output = llm.generate([[POISON, 1, 2]], params(n=3))[0]
    assert [sequence.finish_reason for sequence in output.outputs] == ["error"] * 3
    assert llm.engine.stats()["kv_cache_usage_perc"] == 0


def test_nothing_left_to_say_ends_one_request(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]]
) -> None:
    llm = create_llm()
    (prompt,) = prompts(10)
    eos = llm.engine.model_config.eos_token_ids[0]
    other = eos + 1  # once, then neither: what leaves no first token is refused before it runs
    impossible = SamplingParams(
        allowed_token_ids=[eos, other], bad_words_token_ids=((other, other),), min_tokens=3
    )
    fine = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    outputs = llm.generate([prompt, prompt], [impossible, fine])
    assert outputs[0].outputs[0].finish_reason == "error"
    assert "forbid" in (outputs[0].error or "")
    assert outputs[1].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "preempted", "finished"])
def test_cancelled_in_every_state(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]], state: str
) -> None:
    llm = create_llm(
        max_num_seqs=2,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=8,
        block_size=16,
        looks_ahead=False,
    )
    engine = llm.engine
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    older, mine = prompts(40, 40)
    expected = llm.generate(older, greedy)[0].outputs
    engine.add_request("older", older, greedy)
    engine.add_request("mine", mine, greedy)
    requests = engine.engine.scheduler.requests
    done: dict[str, object] = {}

    def is_reached() -> bool:
        request = requests.get("mine")
        if request is None or state == "finished":
            return request is None
        kind = request.status.value
        if state == "prefilling":
            return kind == "running" and 0 < request.num_computed_tokens < 40
        if state == "decoding":
            return kind == "running" and request.num_output_tokens > 1
        return kind == state

    while not is_reached():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs
    aborted = engine.abort_request("mine")
    assert [o.outputs[0].finish_reason for o in aborted] == (
        [] if state == "finished" else ["abort"]
    )
    assert engine.abort_request("mine") == []
    engine.engine.scheduler.kv.check_integrity()
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs
    assert done["older"] == expected
    assert engine.stats()["kv_cache_usage_perc"] == 0
