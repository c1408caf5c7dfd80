"""Blocks from disk and from a shared store: the same tokens, in other processes, too."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.equality import Condition, run
from quire import LLM, SamplingParams
from quire.runner.blocks.tiers import shared_tier
from quire.store.hub import resolve_model
from tests.integration.conftest import once
from tests.integration.test_block_store import ask, start
from tests.preforked import Preforked
from tests.robustness.conftest import wait_for
from tests.sizes import sized
from tools.random_adapter import random_adapter

pytestmark = pytest.mark.usefixtures("dear_computing")
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=2, ignore_eos=True)


def written(llm: LLM) -> None:
    """Wait until nothing is on its way to a tier."""
    deadline = time.monotonic() + 60
    while llm.engine.executor.tiers.slow.num_queued:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def contents(paths: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Yield the files that are there: one read ahead and damaged is removed meanwhile."""
    for path in paths:
        with suppress(FileNotFoundError):
            yield path, path.read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "int8"},
        {"model": "tiny-deepseek"},
        {"model": "tiny-mixtral"},
        {"kv_canary": "raise"},
        {"tensor_parallel_size": 2},
        {"kv_offload_bytes": 6 * 3072},
    ],
)
def test_blocks_come_back_from_disk_evicted_and_after_a_restart(
    create_llm, prompts, tmp_path, settings
):
    work = prompts(40, 45, 47)
    plain = {key: value for key, value in settings.items() if key != "kv_offload_bytes"}
    expected = [ask(start(create_llm, **plain), prompt).outputs for prompt in work]
    folder = str(tmp_path / "kv")
    for number in range(2):
        llm = start(create_llm, kv_offload_dir=folder, **settings)
        for again in range(2):
            for prompt, right in zip(work, expected, strict=True):
                found = ask(llm, prompt)
                assert found.outputs == right
                full = (len(prompt) - 1) // 4 * 4
                assert found.num_cached_tokens == (full if number or again else 0)
            written(llm)
        stats = llm.engine.engine.stats()
        assert stats['kv_offload_load_bytes{tier="disk"}'] > 0
        assert "disk" in llm.engine.engine.describe_cache()


OTHER_PROCESS = """
import json, sys
from quire import LLM, SamplingParams
from quire.engine.scheduling.prefill_policy import PrefillPolicy
from quire.runner.blocks.tiers import block_writer
PrefillPolicy.prompt_token_seconds = 1.0  # as of ``dear_computing``
block_writer.LAST_SECONDS = 60.0
settings, work = json.loads(sys.argv[1])
asked = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=2, ignore_eos=True)
llm = LLM(**settings)
outputs = [llm.generate({"prompt_token_ids": prompt}, asked)[0] for prompt in work]
print(json.dumps([[o.num_cached_tokens, o.outputs[0].token_ids] for o in outputs]))
llm.shutdown()
"""


def in_another_process(settings: dict[str, Any], work: list[list[int]]) -> Any:
    command = [sys.executable, "-c", OTHER_PROCESS, json.dumps([settings, work])]
    with Preforked(command, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(output)


def test_another_process_goes_on_with_the_blocks(
    create_llm, prompts, tmp_path, checkpoint, small, device
):
    work = prompts(40, 45)
    settings = {"num_gpu_blocks_override": 17, "block_size": 4, "max_model_len": 64}
    settings |= {"kv_offload_dir": str(tmp_path), "device": device} | small
    settings["model"] = str(checkpoint("tiny-llama"))
    first = in_another_process(settings, work)
    assert [cached for cached, _ in first] == [0, 0]
    second = in_another_process(settings | {"kv_offload_read_only": True}, work)
    assert [cached for cached, _ in second] == [36, 44]
    other = settings | {"quantization": "int8"}
    assert [cached for cached, _ in in_another_process(other, work)] == [0, 0], "other weights"
    expected = [ask(start(create_llm), prompt).outputs[0].token_ids for prompt in work]
    assert [tokens for _, tokens in first] == [tokens for _, tokens in second] == expected


def test_whatever_happens_to_the_files_tokens_are_the_same(create_llm, prompts, tmp_path):
    """Random bytes, cut and swapped files, in every round others."""
    rng = random.Random(7)
    work = prompts(40, 45, 47, 50)
    plain = start(create_llm)
    expected = [ask(plain, prompt).outputs for prompt in work]
    for _ in range(sized(2, 4)):
        llm = start(create_llm, kv_offload_dir=str(tmp_path))
        for _ in range(3):
            for prompt, right in zip(work, expected, strict=True):
                assert ask(llm, prompt).outputs == right
            written(llm)
            files = dict(contents(sorted(tmp_path.rglob("*.kv"))))
            for path in rng.sample(list(files), len(files) // 3):
                data = files[path]
                hostile = [rng.randbytes(len(data)), data[: rng.randrange(len(data))]]
                path.write_bytes(rng.choice([*hostile, rng.choice(list(files.values()))]))
            rng.choice(list(files)).unlink(missing_ok=True)


def test_salts_keep_their_blocks_apart(create_llm, prompts, tmp_path):
    (prompt,) = prompts(40)
    llm = start(create_llm, kv_offload_dir=str(tmp_path), kv_offload_bytes=2**20)
    engine, others = llm.engine, prompts(45, 47, seed=6)
    for salt in ("a", "b", None):
        for number in range(2):
            engine.add_request(f"{salt}-{number}", prompt, ASKED, cache_salt=salt)
            outputs = []
            while engine.has_unfinished_requests():
                outputs += engine.step()
            assert outputs[-1].num_cached_tokens == (36 if number else 0)
            for other in others:
                ask(llm, other)
            written(llm)


def test_preempted_requests_get_their_blocks_back(create_llm, prompts):
    work = [{"prompt_token_ids": prompt} for prompt in prompts(30, 31, 33, 35)]
    asked = SamplingParams(temperature=0.7, seed=1, max_tokens=60, logprobs=1, ignore_eos=True)
    settings = {"block_size": 4, "max_model_len": 128}
    expected = [o.outputs for o in create_llm(**settings).generate(work, asked)]
    few = settings | {"num_gpu_blocks_override": 42, "looks_ahead": False}
    counts = []
    for num_bytes in (0, 2**20):
        llm = create_llm(**few, kv_offload_bytes=num_bytes)
        assert [o.outputs for o in llm.generate(work, asked)] == expected
        stats = llm.engine.engine.stats()
        assert stats["num_preemptions"] > 0
        names = "preemption_swapped_tokens", "preemption_recomputed_tokens"
        counts.append([stats[name] for name in names])
    (none, recomputed), (swapped, rest) = counts
    assert none == 0 and swapped > 0 and rest < recomputed


TIERED: list[tuple[str, int, dict[str, Any]]] = [
    ("tiny-llama", 2, {"kv_cache_dtype": "int8"}),
    ("tiny-mixtral", 0, {"dtype": "bfloat16"}),
    ("tiny-llava", 0, {"num_gpu_blocks_override": 44}),
    ("quire-tiny", 0, {"kv_cache_dtype": "int4"}),
]
TIERS = ["ram", "disk", "both"]
CONDITIONS = [
    Condition(warm=True),
    Condition(batched=True, warm=True, preempted=True),
    Condition(batched=True, warm=True, chunked=True, streamed=True, speculative=True),
]


@pytest.mark.parametrize(("family", "num_adapters", "settings"), TIERED)
@pytest.mark.parametrize("tiers", TIERS)
def test_the_lattice_with_tiers(
    checkpoint, device, tmp_path, tmp_path_factory, family, num_adapters, settings, tiers
):
    number = TIERED.index((family, num_adapters, settings)) + TIERS.index(tiers)
    folder = checkpoint(family) if family != "quire-tiny" else resolve_model(family)
    adapters = [
        random_adapter(folder, tmp_path_factory.mktemp("adapter"), seed=seed)
        for seed in range(num_adapters)
    ]
    settings = {"device": device, "enable_lora": bool(adapters), **settings}
    given = folder, num_adapters, settings
    baseline = once(lambda: run(folder, Condition(), settings, adapters=adapters), "tiers", *given)
    settings = {"num_gpu_blocks_override": 36, **settings}
    if tiers != "disk":
        settings["kv_offload_bytes"] = 2**20
    if tiers != "ram":
        settings["kv_offload_dir"] = str(tmp_path)
    # Each model meets all conditions, each in another tier, and so does each tier.
    names = [f'kv_offload_load_bytes{{tier="{tier}"}}' for tier in ("ram", "disk")]
    for condition in sized([CONDITIONS[number % 3]], CONDITIONS):

        def has_loaded(condition=condition) -> bool:
            """Where the machine stalls a reader, others take the room, and blocks are computed."""
            found = run(folder, condition, settings, baseline, adapters)
            assert found.results == baseline.results, condition.name
            return sum(found.stats.get(name, 0) for name in names) > 0

        wait_for(has_loaded)


def test_servers_share_what_one_has_computed(create_llm, prompts, store, monkeypatch):
    monkeypatch.setattr(shared_tier, "ANSWER_SECONDS", 60.0)
    one, two = (start(create_llm, kv_offload_url=store.url) for _ in range(2))
    for llm in (one, two):
        llm.engine.executor.tiers.slow.tiers[0]._fingerprint.result()
    work = prompts(40, 45)
    expected = [ask(one, prompt) for prompt in work]
    written(one)
    for prompt, right in zip(work, expected, strict=True):
        found = ask(two, prompt)
        assert found.outputs == right.outputs
        assert found.num_cached_tokens == (len(prompt) - 1) // 4 * 4
    store.stop()
    for prompt, right in zip(work, expected, strict=True):
        assert ask(one, prompt).outputs == right.outputs
        assert ask(two, prompt).outputs == right.outputs


BUSY_PROCESS = """
import json, random, sys
from quire import LLM, SamplingParams
settings, work = json.loads(sys.argv[1])
llm = LLM(**settings)
asked = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
print("begins", flush=True)
while True:
    llm.generate([prompt + [random.randrange(200)] * 9 for prompt in work], asked, False)
"""


def test_a_killed_engine_leaves_blocks_that_are_right(
    create_llm, prompts, tmp_path, checkpoint, small, device
):
    work = prompts(30, 31, 33)
    settings = {"num_gpu_blocks_override": 40, "block_size": 4, "max_model_len": 64}
    settings |= {"kv_offload_dir": str(tmp_path), "device": device} | small
    settings |= {"model": str(checkpoint("tiny-llama")), "kv_offload_disk_bytes": 2_000_000}
    for number in range(3):
        child = Preforked(
            [sys.executable, "-c", BUSY_PROCESS, json.dumps([settings, work])],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert child.stdout.readline() == "begins\n"
        wait_for(lambda: len(list(tmp_path.rglob("*.kv"))) > 8)
        time.sleep(0.1 * (number + 1))
        child.kill()
        child.wait()
        child.stdout.close()
    plain = start(create_llm)
    llm = start(create_llm, kv_offload_dir=str(tmp_path))
    num_cached = 0
    for prompt in work:
        found = ask(llm, prompt)
        num_cached += found.num_cached_tokens
        assert found.outputs == ask(plain, prompt).outputs
    assert num_cached > 0
    assert llm.engine.engine.stats()['kv_offload_damaged_blocks{tier="disk"}'] == 0
