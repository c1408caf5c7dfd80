"""Tiny random checkpoints of every family, and engines on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.equality import Condition, few_conditions
from quire import LLM
from quire.engine.prefill_policy import PrefillPolicy
from tests.sizes import sized
from tools.random_checkpoint import PRESETS

FAMILIES = sorted(name for name in PRESETS if name.startswith("tiny-"))


def lattice() -> list[Condition]:
    """Return conditions for a model of one kind: all together; with ``--all`` each alone, too.

    Each alone, on every family, is ``test_equality``'s.
    """
    few = few_conditions()
    return sized(few[-2:], few)


def share(kinds: Iterable[str], number: int, of: int, settings: dict[str, Any]) -> list[str]:
    """Return the kinds of requests that one of several takes in turn; with ``--all`` all of them.

    Where blocks are few, ``n`` is among them: its sequences do not fit together. Without a cache a
    step takes the longest, and half as many are taken.
    """
    found = list(kinds)
    taken = found[number % of :: of]
    if not settings.get("use_cache", True):
        taken = taken[number // of % 2 :: 2]
    if "num_gpu_blocks_override" in settings and "n" not in taken:
        taken.append("n")
    return sized(taken, found)


@pytest.fixture
def create_llm(
    checkpoint: Callable[..., Path], device: str, small: dict[str, Any]
) -> Iterator[Callable[..., LLM]]:
    """Return a function that loads a preset (or folder) with further settings."""
    made: list[LLM] = []

    def create(
        model: str | Path = "tiny-llama",
        *,
        looks_ahead: bool = True,
        takes_more: bool = False,
        **settings: Any,
    ) -> LLM:
        """``looks_ahead`` False: preempts; ``takes_more``: prompts take turns, as in a server."""
        folder = model if isinstance(model, Path) else checkpoint(model)
        made.append(LLM(str(folder), **{"device": device, **small, **settings}))
        scheduler = made[-1].engine.engine.scheduler
        if not looks_ahead:
            scheduler.admission.admits = lambda *_: True  # type: ignore[method-assign]
        if takes_more:
            scheduler.prefill = PrefillPolicy(scheduler.options, takes_more)
        return made[-1]

    yield create
    for llm in made:
        llm.engine.engine.scheduler.kv.check_integrity()
        llm.shutdown()


@pytest.fixture
def prompts() -> Callable[..., list[list[int]]]:
    """Return a function that makes prompts of given lengths."""

    def make(*lengths: int, seed: int = 5) -> list[list[int]]:
        random = np.random.default_rng(seed)
        return [random.integers(0, 256, length).tolist() for length in lengths]

    return make
