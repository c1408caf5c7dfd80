"""A model on several ranks: real processes, and the bits of one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.equality import Condition, check_lattice, few_conditions
from quire import LLM, SamplingParams
from quire.core.errors import EngineDeadError
from quire.models.hub import resolve_model
from tests.integration.conftest import FAMILIES


@pytest.mark.parametrize("size", [2, 3])
def test_quire_tiny_on_ranks(size: int) -> None:
    conditions = [Condition(), *few_conditions()] if size == 2 else [Condition(batched=True)]
    varied = {"tensor_parallel_size": size}
    outcomes = check_lattice(resolve_model("quire-tiny"), conditions, varied=varied)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_on_two_ranks(checkpoint: Callable[..., Path], family: str) -> None:
    conditions = [Condition(batched=True, chunked=True)]
    varied = {"tensor_parallel_size": 2}
    outcomes = check_lattice(checkpoint(family), conditions, varied=varied)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


@pytest.mark.parametrize("sizes", [(1, 2), (1, 4), (2, 2)], ids=str)
def test_quire_tiny_in_stages(sizes: tuple[int, int]) -> None:
    conditions = [Condition(), *few_conditions()] if sizes == (1, 2) else [Condition(batched=True)]
    varied = dict(zip(("tensor_parallel_size", "pipeline_parallel_size"), sizes, strict=True))
    outcomes = check_lattice(resolve_model("quire-tiny"), conditions, varied=varied)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


def test_a_killed_rank_is_named_and_none_is_left() -> None:
    before = set(psutil.Process().children())
    with LLM(tensor_parallel_size=2, threads=1) as llm:
        assert llm.generate("Hello", SamplingParams(max_tokens=4))
        ranks = [p for p in psutil.Process().children() if p not in before]
        assert len(ranks) == 1
        os.kill(ranks[0].pid, signal.SIGKILL)
        time.sleep(0.5)
        with pytest.raises(EngineDeadError, match=rf"rank 1.*{ranks[0].pid}"):
            llm.generate("Hello", SamplingParams(max_tokens=4))
    assert not [p for p in ranks if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
