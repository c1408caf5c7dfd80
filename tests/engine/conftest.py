"""Engines that run on a simulated paged cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from quire.core.engine_request import EngineRequest
from quire.core.model.model_config import ModelConfig
from quire.core.sampling_params import SamplingParams
from quire.core.step import (
    SchedulerOutput,
    SequenceResult,
)
from quire.engine.engine import Engine
from quire.engine.engine_output import EngineOutput
from quire.engine.request import Request
from quire.settings.config import EngineConfig
from tests.engine.paged_executor import (
    VOCAB_SIZE,
    AcceptingExecutor,
    CountingExecutor,
    ForcingExecutor,
    PagedExecutor,
    ProposingExecutor,
    oracle,
)
from tests.engine.staged_executor import StagedExecutor, VirtualClock
from tests.sizes import sized

#: Pools of more blocks take far longer to look at than a step takes; they are after every tenth.
SMALL_POOL = 500


@dataclass
class Run:
    """An engine on a :class:`PagedExecutor` that checks the invariants after every step.

    Attributes:
        tokens: Output so far per ``(request_id, index)``.
        endings: Finish reason per ``(request_id, index)``.
        request_arrived: Function that the engine calls within steps.
    """

    engine: Engine
    executor: PagedExecutor
    clock: VirtualClock
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    endings: dict[tuple[str, int], str] = field(default_factory=dict)
    outputs: list[EngineOutput] = field(default_factory=list)
    request_arrived: Callable[[], bool] = lambda: False

    @property
    def plans(self) -> list[SchedulerOutput]:
        return self.executor.plans

    @property
    def kv(self) -> Any:
        return self.engine.scheduler.kv

    def add(
        self,
        request_id: str,
        prompt: list[int],
        **options: Any,
    ) -> None:
        """Add a request; ``options`` are of it or of its sampling parameters."""
        params = {"temperature": 0.0, "ignore_eos": True} | options
        names = {field.name for field in fields(EngineRequest)} & options.keys()
        attributes = {name: params.pop(name) for name in names}
        request = EngineRequest(request_id, prompt, SamplingParams(**params), **attributes)
        self.engine.add_request(request)

    def take(self, outputs: list[EngineOutput]) -> list[EngineOutput]:
        for output in outputs:
            key = (output.request_id, output.index)
            assert key not in self.endings, f"news of {key} after its end"
            self.tokens.setdefault(key, []).extend(output.result.token_ids)
            if output.finish_reason:
                self.endings[key] = output.finish_reason
        self.outputs += outputs
        return outputs

    def abort(self, request_id: str) -> None:
        self.take(self.engine.abort_request(request_id))
        self.kv.check_integrity()

    def step(self) -> list[EngineOutput]:
        num_plans = len(self.plans)
        outputs = self.take(self.engine.step(lambda: self.request_arrived()))
        scheduler, options = self.engine.scheduler, self.engine.scheduler.options
        if len(self.plans) > num_plans:
            budget = options.max_num_batched_tokens
            least = 0 if self.plans[-1].moves_blocks else 1
            assert least <= self.plans[-1].num_scheduled_tokens <= budget
        slots = sum(1 + len(request.pending_children) for request in scheduler.running)
        assert slots <= options.max_num_seqs
        assert scheduler.running == sorted(scheduler.running, key=lambda r: r.order)
        for request in scheduler.requests.values():
            assert request.num_computed_tokens <= request.num_tokens
        if self.kv.pool.num_blocks <= SMALL_POOL or len(self.plans) % sized(10, 1) == 0:
            self.kv.check_integrity()
        return outputs

    def finish(self) -> None:
        """Step until nothing is left; then no block may be held."""
        while self.engine.has_unfinished_requests():
            self.step()
        self.kv.check_integrity()
        assert self.kv.pool.num_used == 0
        assert not self.engine.scheduler.running and not len(self.engine.scheduler.waiting)


def model_config(**changes: Any) -> ModelConfig:
    """A model no test looks into."""
    values: dict[str, Any] = {
        "architecture": "Hashes",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 1,
        "num_layers": 2,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 1,
        "intermediate_size": 1,
        "max_position_embeddings": 4096,
    }
    return ModelConfig(**(values | changes))


class UpTo:
    """A policy that lets every request get a fixed number of tokens proposed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.num_resting = 0
        self.asked: list[list[str]] = []
        self.begun: list[str] = []
        self.ready = self.keeps_states = True
        self.compared: list[tuple[bool, int, int]] = []

    def began(self, request_id: str, params: SamplingParams) -> None:
        self.begun.append(request_id)

    def is_ready(self, num_running: int, has_new: bool) -> bool:
        return self.ready

    def brought(self, is_ready: bool, num_decodes: int, num_tokens: int, seconds: float) -> None:
        self.compared.append((is_ready, num_decodes, num_tokens))

    def choose(self, decodes: Sequence[Request], num_other_rows: int) -> list[int]:
        self.asked.append([request.request_id for request in decodes])
        return [self.most] * len(decodes)

    def rest(self) -> int:
        return self.num_resting

    def observe(self, request: Request, result: SequenceResult) -> None:
        assert result.num_accepted <= result.num_proposed <= self.most

    def step_ended(self, num_rows: int, seconds: float, draft_seconds: float) -> None:
        assert num_rows > 0

    def ended(self, request: Request) -> None:
        pass

    def samples(self) -> dict[str, float]:
        return {}


@pytest.fixture
def start() -> Callable[..., Run]:
    """Return a maker of runs; keywords are engine settings and a few of its own."""

    def make(
        num_blocks: int = 200,
        eos_token_ids: tuple[int, ...] = (),
        executor_class: type[PagedExecutor] = PagedExecutor,
        max_position_embeddings: int = 4096,
        step_seconds: Callable[[SchedulerOutput], float] = lambda plan: 1.0,
        takes_more: bool = True,
        looks_ahead: bool = True,
        most_proposed: int | None = None,
        stages: Sequence[float] = (),
        **settings: Any,
    ) -> Run:
        config = EngineConfig.from_keywords(**settings)
        clock = VirtualClock()
        executor = executor_class(num_blocks, config.cache.block_size)
        executor.on_step = lambda plan: clock.advance(step_seconds(plan))
        if isinstance(executor, StagedExecutor):
            executor.pass_time(clock, stages or [1.0])
        model = model_config(
            eos_token_ids=eos_token_ids, max_position_embeddings=max_position_embeddings
        )
        lookahead = None if most_proposed is None else UpTo(most_proposed)
        engine = Engine(
            executor, config, model, clock=clock, takes_more=takes_more, lookahead=lookahead
        )
        if not looks_ahead:
            engine.scheduler.admission.admits = lambda *_: True
        return Run(engine, executor, clock)

    return make


@pytest.fixture
def counting() -> type[PagedExecutor]:
    """Return the executor class for long prompts and counts."""
    return CountingExecutor


@pytest.fixture
def forcing() -> type[PagedExecutor]:
    """Return the executor class for steps that yield several tokens."""
    return ForcingExecutor


@pytest.fixture
def accepting() -> type[PagedExecutor]:
    """Return the executor class for steps with accepted, drawn and forced tokens."""
    return AcceptingExecutor


@pytest.fixture
def proposing() -> type[PagedExecutor]:
    """Return the executor class for steps with proposed tokens."""
    return ProposingExecutor


@pytest.fixture
def unpaged() -> Callable[..., list[int]]:
    """Return the oracle: ``(prompt, params, seed, num_tokens) -> token ids``."""
    return oracle
