"""Tiny random checkpoints of every family, and engines on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from benchmarks import lattice_requests
from benchmarks.equality import Condition, few_conditions
from quire import LLM
from quire.core.outputs import RequestOutput
from quire.engine.scheduling.prefill_policy import PrefillPolicy
from quire.runner.step import mask_threads
from tests import preforked
from tests.sizes import sized
from tools.random_checkpoint import PRESETS

#: Settings that change the numbers of a model; no other one changes an answer.
NUMERIC = ("dtype", "kv_cache_dtype", "quantization")
T = TypeVar("T")
FAMILIES = sorted(name for name in PRESETS if name.startswith("tiny-"))


def lattice(turn: int | None = None) -> list[Condition]:
    """Return conditions for a model of one kind: all together; with ``--all`` each alone, too.

    Each alone, on every family, is ``test_equality``'s.

    Args:
        turn: Number of a model among those that differ in their weights' form alone: even ones have
            chains of proposals, odd ones trees.
    """
    few = few_conditions()
    together = few[-2:] if turn is None else [few[-2:][turn % 2]]
    return sized(together, few)


#: Tokens that the lattice's requests generate by themselves.
LONG = lattice_requests.NUM_OUTPUT_TOKENS


def turns(number: int, of: int) -> list[Condition]:
    """Return what one of several models takes in turn: some alone, and all together.

    With ``--all`` each alone, and all together both with chains and with trees.
    """
    few = few_conditions()
    return sized([*few[:-2][number % of :: of], few[-2:][number // of % 2]], few)


@pytest.fixture(scope="module", autouse=True)
def _short_answers() -> Iterator[None]:
    """Have answers of the lattice's requests fill two blocks: with fewer nothing is preempted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lattice_requests, "NUM_OUTPUT_TOKENS", sized(16, LONG))
        yield


@pytest.fixture
def long_answers(_short_answers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have them be longer: with pictures or a window requests have more room than they fill."""
    monkeypatch.setattr(lattice_requests, "NUM_OUTPUT_TOKENS", LONG)


def share(kinds: Iterable[str], number: int, of: int, settings: dict[str, Any]) -> list[str]:
    """Return the kinds of requests that one of several takes in turn; with ``--all`` all of them.

    Where blocks are few, ``n`` is among them: its sequences do not fit together. Without a cache a
    step takes the longest, and half as many are taken.
    """
    found = list(kinds)
    taken = found[number % of :: of]
    if not settings.get("use_cache", True) and len(taken) > 1:
        taken = taken[number // of % 2 :: 2]
    if "num_gpu_blocks_override" in settings and "n" not in taken:
        taken.append("n")
    return sized(taken, found)


#: What was computed for all tests of a file, or of several, by what was asked.
_computed: dict[str, Any] = {}


def once(compute: Callable[[], T], *asked: Any) -> T:
    """Return what ``compute`` does, once for all tests that ask the same."""
    key = repr(asked)
    if key not in _computed:
        _computed[key] = compute()
    found: T = _computed[key]
    return found


def fewer(tokens: int, settings: dict[str, Any]) -> int:
    """Return how much to ask for: half without a cache, where each step computes all anew."""
    return sized(tokens if settings.get("use_cache", True) else tokens // 2, tokens)


@pytest.fixture(scope="session")
def plain_answers(
    device: str, small: dict[str, Any]
) -> Iterator[Callable[..., list[RequestOutput]]]:
    """Return a function with a model's answers without speculation, each computed once.

    They are those of an engine with room for all and nothing else set than :data:`NUMERIC` of the
    settings: those without a cache, in few blocks, or on more threads must be the same. The last
    one is kept for what is asked next, which finds no prefix of what was asked before.
    """
    kept: dict[str, LLM] = {}

    def engine(model: str | Path, numeric: dict[str, Any]) -> LLM:
        key = repr((model, numeric))
        if key not in kept:
            while kept:
                kept.popitem()[1].shutdown()
            kept[key] = LLM(str(model), **{"device": device, **small, **numeric})
        kept[key].engine.reset_prefix_cache()
        return kept[key]

    def answer(
        model: str | Path, prompts: Any, params: Any, chats: bool = False, **settings: Any
    ) -> list[RequestOutput]:
        numeric = {name: settings[name] for name in NUMERIC if name in settings}

        def compute() -> list[RequestOutput]:
            llm = engine(model, numeric)
            return (llm.chat if chats else llm.generate)(prompts, params)

        return once(compute, "plain", model, prompts, params, chats, numeric)

    yield answer
    for llm in kept.values():
        llm.shutdown()


@pytest.fixture
def ranks_have_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork ranks from a process that has imported torch, for longer than they compute with it."""
    monkeypatch.setattr(preforked, "OF_TORCH", {"-c", "-m"})  # all of them


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


@pytest.fixture
def dear_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have computing cost so much that everything is loaded: these models are that small."""
    monkeypatch.setattr(PrefillPolicy, "prompt_token_seconds", 1.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars are followed in time on any machine: none sits out a step, and none is slow."""
    monkeypatch.setattr(mask_threads, "SECONDS_BESIDES", 60.0)
    monkeypatch.setattr(mask_threads, "SECONDS_ALONE", 60.0)
    monkeypatch.setattr("quire.runner.step.grammar_lookahead.SLOW_SECONDS", 60.0)
    monkeypatch.setattr("quire.runner.step.row_grammars.SLOW_SECONDS", 60.0)
