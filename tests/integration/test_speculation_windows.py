"""Heads that draft for a model whose window is shorter than prompts and answers: the same answers.

The model gives back blocks that its window has left, and with them KV of the head.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from quire import LLM, SamplingParams  # noqa: E402
from tests.integration.test_speculation_draft import results  # noqa: E402
from tests.recurrent_heads import read_vocabulary, write_random_head  # noqa: E402
from tests.sizes import sized  # noqa: E402
from tools.random_checkpoint import PRESETS, random_checkpoint  # noqa: E402

WINDOWS = [7, 24]
HEADS = ["eagle", "eagle3", "mtp"]
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {},
    "tree": {"tree_width": 3, "tree_depth": 3, "num_speculative_tokens": 11},
}
#: A long prompt, one as long as a block, and a short one.
PROMPTS: list[Any] = [
    {"prompt_token_ids": ids}
    for ids in ([5, 9, 3, 200, 31, 7, 40] * 30, [7, 8, 1, 4] * 2, [11, 12, 13])
]
SETTINGS: list[dict[str, Any]] = [
    {"block_size": 8},
    {"block_size": 8, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 46},
    {"kv_cache_dtype": "bfloat16", "kv_canary": "raise"},
    {"kv_layout": "contiguous", "max_model_len": 384, "max_num_seqs": 4},
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Path]:
    """Return a function that gives a window's target or one of its heads, each written once."""
    root = tmp_path_factory.mktemp("windows")

    def write(window: int, kind: str) -> Path:
        folder = root / str(window) / kind
        if not folder.exists():
            config = {**PRESETS["tiny-mistral"], "sliding_window": window}
            if kind == "target":
                random_checkpoint(folder, config)
            else:
                vocabulary = read_vocabulary(write(window, "target"))
                write_random_head(kind, vocabulary, folder, config["num_hidden_layers"])
        return folder

    return write


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_are_the_same(
    create_llm: Callable[..., LLM],
    device: str,
    written: Callable[[int, str], Path],
    settings: dict[str, Any],
    window: int,
) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    target = written(window, "target")
    own = [
        SamplingParams(
            temperature=t, seed=i, n=n, max_tokens=sized(40, 70), ignore_eos=True, logprobs=1
        )
        for i, (t, n) in enumerate([(0.0, 1), (0.2, 2), (0.9, 1)])
    ]
    expected = results(create_llm(target, **settings).generate(PROMPTS, own))
    number = SETTINGS.index(settings) + WINDOWS.index(window)
    for turn, kind in enumerate(HEADS, number):
        head = written(window, kind)
        shapes = list(SHAPES.values())
        # Each head in each window gets both shapes, under two settings each.
        for shape in sized([shapes[turn % 2]], shapes):
            method = {"method": kind, "model": str(head), "adaptive": False, **shape}
            llm = create_llm(target, **settings, speculative_config=method)
            assert results(llm.generate(PROMPTS, own)) == expected, (kind, shape)
            stats = llm.engine.stats()
            counts = [
                sum(v for k, v in stats.items() if k.startswith(f"spec_decode_num_{stem}{{"))
                for stem in ("draft_tokens", "accepted_tokens")
            ]
            assert counts[0] > sized(150, 300) and counts[1] > 0, (kind, shape, counts)
            assert stats['num_kv_blocks{state="used"}'] == 0
