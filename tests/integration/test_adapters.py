"""Adapters in the engine: the equality lattice, bounded memory, waiting, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.equality import check_lattice, few_conditions
from quire import LLM, BeamSearchParams, LoRARequest, SamplingParams
from quire.core.errors import ConfigError, ModelLoadError, RequestError
from quire.models.adapters.peft_folder import WEIGHTS
from tests.sizes import sized
from tools.random_adapter import random_adapter

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="session")
def adapter(
    checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return a function that makes a random adapter of a preset."""

    def make(seed: int, preset: str = "tiny-llama", **settings: Any) -> Path:
        out = tmp_path_factory.mktemp("adapter")
        return random_adapter(checkpoint(preset), out, seed=seed, **settings)

    return make


def lora(folder: Path, number: int = 1) -> LoRARequest:
    return LoRARequest(folder.name, number, str(folder))


def tokens(llm: LLM, prompts: list[list[int]], adapters: Any = None) -> list[list[int]]:
    outputs = llm.generate(prompts, GREEDY, False, adapters)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("tiny-llama", {}),
        ("tiny-mixtral", {}),
        ("tiny-llama", {"quantization": "int4"}),
        ("tiny-mixtral", {"quantization": "int4"}),
        ("tiny-llama", {"dtype": "bfloat16"}),
    ],
)
def test_the_lattice_with_adapters(
    checkpoint: Callable[..., Path],
    adapter: Callable[..., Path],
    device: str,
    family: str,
    settings: dict[str, Any],
) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    dtype = "bfloat16" if settings else "float32"
    folders = [adapter(1, family, dtype=dtype), adapter(2, family, rank=3)]
    # Requests of different adapters share no blocks, and streamed ones start apart: with few
    # blocks nothing would be left to be found, with a stream no request need make room.
    conditions = [replace(c, preempted=c.preempted and not c.warm) for c in few_conditions()]
    together = [replace(c, warm=False, streamed=False) for c in few_conditions() if c.preempted]
    conditions += [c for c in together if c not in conditions]
    joined = [c for c in conditions if c.batched and c.chunked]
    if settings:  # of other weights and types: what all at once brings, with room and without
        conditions = sized([joined[0], joined[-1]], conditions)  # a chain and a tree
    else:  # of two families: half of what each alone brings, and all at once
        alone = [c for c in conditions if c not in joined]
        number = ["tiny-llama", "tiny-mixtral"].index(family)
        conditions = sized([*alone[number::2], *joined[number::2]], conditions)
    outcomes = check_lattice(
        checkpoint(family), conditions, device=device, adapters=folders, **settings
    )
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


def test_an_adapter_changes_the_answers_of_its_requests_alone(
    create_llm: Callable[..., LLM],
    adapter: Callable[..., Path],
    prompts: Callable[..., list[list[int]]],
) -> None:
    first, second = adapter(1), adapter(2)
    (prompt,) = prompts(40)
    (plain,) = tokens(create_llm(), [prompt])
    llm = create_llm(enable_lora=True)
    ours = tokens(llm, [prompt] * 4, [lora(first), None, lora(second), lora(first)])
    assert ours[1] == plain and ours[0] == ours[3]
    assert len({tuple(one) for one in ours}) == 3
    # What one of them left in the prefix cache is no use to the others.
    again = llm.generate([prompt] * 2, GREEDY, False, [lora(second), None])
    assert [output.outputs[0].token_ids for output in again] == [ours[2], plain]
    assert all(output.num_cached_tokens > 0 for output in again)


def test_adapters_of_one_name_and_other_content_share_no_blocks(
    create_llm: Callable[..., LLM],
    adapter: Callable[..., Path],
    prompts: Callable[..., list[list[int]]],
) -> None:
    """Clients choose names: two of them may call their own adapters alike."""
    (prompt,) = prompts(40)
    first, second = (LoRARequest("mine", 1, str(adapter(seed))) for seed in (1, 2))
    own = [tokens(create_llm(enable_lora=True), [prompt], one)[0] for one in (first, second)]
    assert own[0] != own[1]
    llm = create_llm(enable_lora=True)
    assert llm.engine.engine.scheduler.kv.block_size < 40
    for one, expected, num_cached in ((first, own[0], 0), (second, own[1], 0), (first, own[0], 32)):
        (output,) = llm.generate([prompt], GREEDY, False, one)
        assert output.outputs[0].token_ids == expected
        assert output.num_cached_tokens == num_cached


def test_more_adapters_than_fit_take_turns(
    create_llm: Callable[..., LLM],
    adapter: Callable[..., Path],
    prompts: Callable[..., list[list[int]]],
) -> None:
    """Memory is never more than what was set aside, and each answer is that of its adapter."""
    folders = [adapter(seed) for seed in range(5)]
    work = prompts(*range(9, 21))
    adapters = [lora(folders[i % 5]) for i in range(12)]
    roomy = create_llm(enable_lora=True, enable_prefix_caching=False)
    alone = [tokens(roomy, [p], a)[0] for p, a in zip(work, adapters, strict=True)]
    small = create_llm(enable_lora=True, max_loras=2, max_lora_rank=8)
    store = small.engine.executor.adapters
    assert store is not None
    most: list[int] = []
    hold = store._hold

    def watch(*arguments: Any) -> None:
        hold(*arguments)
        most.append(store.nbytes)

    store._hold = watch  # type: ignore[method-assign]
    assert tokens(small, work, adapters) == alone
    stats = small.engine.stats()
    assert stats["lora_adapter_evictions"] >= 3
    assert 0 < max(most) <= store.budget_bytes == stats['memory_bytes{pool="adapters"}']


def test_a_request_waits_for_its_adapter_alone(
    create_llm: Callable[..., LLM],
    adapter: Callable[..., Path],
    prompts: Callable[..., list[list[int]]],
) -> None:
    llm = create_llm(enable_lora=True, takes_more=True)
    store = llm.engine.executor.adapters
    assert store is not None
    ready = False
    collect = store.collect
    store.collect = lambda: collect() if ready else {}  # type: ignore[method-assign]
    cold, warm = prompts(20, 9)
    llm.engine.add_request("cold", cold, GREEDY, lora_request=lora(adapter(1)))
    llm.engine.add_request("warm", warm, GREEDY)
    ended: list[str] = []
    for _ in range(40):
        ended += [output.request_id for output in llm.engine.step() if output.finished]
    assert ended == ["warm"]
    ready = True
    while llm.engine.has_unfinished_requests():
        ended += [output.request_id for output in llm.engine.step() if output.finished]
    assert ended == ["warm", "cold"]


def test_an_adapter_that_changed_on_disk_ends_its_request_alone(
    create_llm: Callable[..., LLM],
    adapter: Callable[..., Path],
    prompts: Callable[..., list[list[int]]],
) -> None:
    llm, folder = create_llm(enable_lora=True), adapter(1)
    first, second = prompts(9, 9)
    request = llm.engine.prepare("a", first, GREEDY, lora_request=lora(folder))
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    llm.engine.submit(request)
    llm.engine.add_request("b", second, GREEDY)
    endings = {}
    while llm.engine.has_unfinished_requests():
        for output in llm.engine.step():
            endings[output.request_id] = output.outputs[0].finish_reason
    assert endings == {"a": "error", "b": "length"}


def test_what_cannot_be_served_is_refused(
    create_llm: Callable[..., LLM], adapter: Callable[..., Path]
) -> None:
    large = lora(adapter(1, rank=17))
    with pytest.raises(ModelLoadError, match=r"at most --max-lora-rank \(16\); got 17"):
        create_llm(enable_lora=True).generate([[1, 2]], GREEDY, False, large)
    with pytest.raises(RequestError, match="needs an engine with --enable-lora"):
        create_llm().generate([[1, 2]], GREEDY, False, large)
    with pytest.raises(RequestError, match="must be one, or one per prompt"):
        create_llm(enable_lora=True).generate([[1, 2]], GREEDY, False, [large, None])
    with pytest.raises(ConfigError, match="--max-loras must be at least 1; got 0"):
        create_llm(enable_lora=True, max_loras=0)
    with pytest.raises(ConfigError, match=r"--max-lora-rank must be in 1..512; got 513"):
        create_llm(enable_lora=True, max_lora_rank=513)


def test_embeddings_and_several_sequences_have_the_adapter(
    create_llm: Callable[..., LLM],
    adapter: Callable[..., Path],
    prompts: Callable[..., list[list[int]]],
) -> None:
    llm, own = create_llm(enable_lora=True), lora(adapter(1))
    (prompt,) = prompts(24)
    params = SamplingParams(n=3, seed=4, temperature=1.0, max_tokens=9, ignore_eos=True)
    several = llm.generate([prompt, prompt], params, False, [own, None])
    for output in several:
        assert len({tuple(sequence.token_ids) for sequence in output.outputs}) == 3
    single = SamplingParams(seed=4, temperature=1.0, max_tokens=9, ignore_eos=True)
    alone = llm.generate([prompt, prompt], single, False, [own, None])
    for output, one in zip(several, alone, strict=True):
        assert output.outputs[0].token_ids == one.outputs[0].token_ids
    assert alone[0].outputs[0].token_ids != alone[1].outputs[0].token_ids
    pooling = SamplingParams(pooling="mean", max_tokens=None, detokenize=False)
    vectors = llm.generate([prompt, prompt], pooling, False, [own, None])
    first, second = (np.frombuffer(output.embedding, np.float32) for output in vectors)
    assert np.abs(first - second).max() > 1e-3


def test_a_single_beam_of_an_adapter_is_its_greedy_text(
    checkpoint: Callable[..., Path], adapter: Callable[..., Path]
) -> None:
    prompts, adapters = [[5, 6, 7], [5, 6, 7], [9, 8]], [None, *map(lora, map(adapter, (1, 2)))]
    with LLM(checkpoint("tiny-llama"), enable_lora=True) as llm:
        greedy = tokens(llm, prompts, adapters)
        params = BeamSearchParams(beam_width=1, max_tokens=12, ignore_eos=True)
        found = llm.beam_search(prompts, params, adapters)
        assert [
            output.sequences[0].tokens[len(prompt) :]
            for prompt, output in zip(prompts, found, strict=True)
        ] == greedy
        assert greedy[0] != greedy[1]
        with pytest.raises(RequestError, match=r"\[lora_request\] must be one, or one per prompt"):
            llm.beam_search(prompts, params, adapters[:2])
