"""Executor in this process: it loads a model and runs the plans that the engine makes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from quire.checkpoints.gguf.gguf_file import forget_gguf
from quire.core.metrics import Samples
from quire.core.model.forward_work import decoder_shape
from quire.core.model.model_config import ModelConfig
from quire.core.speculative_config import MethodName
from quire.core.step import SchedulerOutput, StepOutput
from quire.core.structured_outputs import GrammarSource
from quire.kernels.registry import create_backend
from quire.models.model_builder import Progress
from quire.planner import machine_speed
from quire.runner.blocks.kv_canary import create_canary
from quire.runner.blocks.tiers.block_tiers import BlockTiers
from quire.runner.blocks.tiers.create_tiers import create_tiers
from quire.runner.blocks.tiers.no_tiers import NoTiers
from quire.runner.blocks.transfer.outbox import Outbox
from quire.runner.memory.adapter_placing import create_reader
from quire.runner.memory.adapter_store import AdapterStore, NoAdapters
from quire.runner.memory.engine_plan import EnginePlan, plan_engine
from quire.runner.memory.loaded_drafts import divide_progress, load_draft
from quire.runner.memory.loaded_heads import load_head, with_heads
from quire.runner.memory.loaded_model import LoadedModel, load
from quire.runner.memory.memory_plan import MemoryPlan
from quire.runner.ranks.placement import Placement, place
from quire.runner.row_seconds import measure_rows
from quire.runner.step.model_runner import ModelRunner, RunnerOptions, RunnerParts
from quire.runner.step.picture_encoding import NoPictures
from quire.runner.step.step_retry import StepEnd
from quire.runner.step_estimate import StepEstimate
from quire.settings.config import EngineConfig
from quire.speculative.create_proposers import Maker, create_proposers
from quire.speculative.drafters.vocabularies import VocabularyPair
from quire.system.log import get_logger
from quire.system.machine import Machine, read_machine

log = get_logger(__name__)


@dataclass(slots=True)
class FinishedStep:
    """A step that was computed, or failed, when it was submitted; see the protocol."""

    output: StepOutput
    error: BaseException | None = None

    def result(self) -> StepOutput:
        """Return the step's output, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.output


@dataclass(slots=True)
class BegunStep:
    """A step that later stages compute while the next one begins."""

    end: Callable[[], StepOutput]

    def result(self) -> StepOutput:
        """Wait for the step and return its output."""
        return self.end()


class InProcessExecutor:
    """A loaded model with its KV cache; see :class:`quire.engine.executor.Executor`.

    Args:
        model: The model, whose ``config`` is kept as ``model_config``.
        memory: Plan by which the KV cache was allocated.
        runner: The model's runner; None after :meth:`shutdown`.
        placement: Placement of the model's parts.
        adapters: Adapters of requests; None where requests may have none.
        tiers: Blocks outside of the KV cache; None for none.

    Attributes:
        fine_inputs: Whether inputs of quantized matrices are int16, as the model is small.
    """

    def __init__(
        self,
        model: LoadedModel,
        memory: MemoryPlan,
        runner: ModelRunner,
        placement: Placement,
        adapters: AdapterStore | None,
        tiers: BlockTiers | Outbox | None,
    ) -> None:
        self._placement = placement
        self.model_config = model.config
        self.fine_inputs = model.decoder.held.fine_inputs
        self.memory = memory
        self.kv_cache_spec = model.demand.spec
        self.num_blocks = memory.budget.num_blocks
        self.depth = placement.config.parallel.pipeline_parallel_size
        demand = model.demand
        shape = decoder_shape(model.config, demand.weight_bytes, demand.spec.token_bytes)
        self._estimate = StepEstimate(shape, machine_speed.remembered())
        self._ended = 0.0  # end of the last step
        self.adapters, self.pictures, self.tiers = adapters, model.pictures, tiers
        self.runner: ModelRunner | None = runner

    @property
    def failure(self) -> socket.socket | None:
        """Socket that is readable once :meth:`check` raises; None where it never does."""
        return self._placement.failure

    @property
    def outgoing(self) -> Outbox | None:
        """Sender of blocks to other engines; None where none gets any."""
        return None if self.tiers is None else self.tiers.outgoing

    def submit(
        self, plan: SchedulerOutput, request_arrived: Callable[[], bool]
    ) -> FinishedStep | BegunStep:
        """Compute one step, or the first stage of it; see the protocol."""
        try:
            assert self.runner is not None, "submit after shutdown"
            begin = time.perf_counter()
            end = self.runner.begin(plan, request_arrived)
            if self.depth > 1:
                return BegunStep(partial(self._end, plan, end, begin))
            return FinishedStep(self._end(plan, end, begin))
        except BaseException as error:  # Rust libraries raise panics as such
            return FinishedStep(StepOutput(), error)

    def _end(self, plan: SchedulerOutput, end: StepEnd, begin: float) -> StepOutput:
        """End a step; steps that overlap count the seconds since the one before ended."""
        output = end()
        now = time.perf_counter()
        if plan.scheduled:
            self._estimate.add(plan, output, now - max(begin, self._ended))
        self._ended = now
        return output

    def unready(self) -> frozenset[str]:
        """Return the requests that no step may draw a token for yet; see the protocol."""
        return frozenset() if self.runner is None else self.runner.unready()

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until one of :meth:`unready` is ready, at most ``seconds``."""
        if self.runner is not None:
            self.runner.wait_until_ready(seconds)

    def measure_rows(self) -> dict[int, float]:
        """Return the seconds of a step by the number of its rows; see the protocol."""
        assert self.runner is not None, "measured after shutdown"
        return measure_rows(self.runner.model, self.runner.kv_cache)

    def check(self) -> None:
        """Check that steps can be computed; see the protocol."""
        self._placement.check()

    def stats(self) -> Samples:
        """Return the memory of each pool and the estimated work so far, by metric stem."""
        budget = self.memory.budget
        adapter_bytes = 0 if self.adapters is None else self.adapters.budget_bytes
        values: Samples = {
            'memory_bytes{pool="weights"}': budget.demand.weight_bytes,
            'memory_bytes{pool="scratch"}': budget.demand.scratch_bytes - adapter_bytes,
            'memory_bytes{pool="kv_cache"}': budget.num_blocks * budget.demand.block_bytes,
            'memory_bytes{pool="kv_offload"}': budget.demand.pool_bytes("device"),
        }
        values |= self._estimate.samples() | self._placement.samples()
        return values if self.runner is None else values | self.runner.samples()

    def shutdown(self) -> None:
        """Release weights and KV cache."""
        if self.runner is not None:
            self.runner.close()
            self._placement.close()
        self.runner = None


def load_executor(
    folder: Path,
    config: EngineConfig,
    *,
    eos_token_ids: tuple[int, ...] = (),
    machine: Machine | None = None,
    on_progress: Progress | None = None,
    create_grammars: Callable[[ModelConfig], GrammarSource] | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    vocabularies: Mapping[MethodName, VocabularyPair] | None = None,
) -> InProcessExecutor:
    """Load a model and allocate its KV cache.

    Args:
        folder: The checkpoint, a folder or a GGUF file.
        config: The engine's settings.
        eos_token_ids: Ids that end a sequence, besides those of ``config.json``.
        machine: The memory and processors that may be used; measured when None.
        on_progress: Callback while weights load, with bytes done and bytes in all.
        create_grammars: Call that creates the source of structured outputs' grammars from the
            model's shape.
        meanwhile: The same as in :func:`~quire.models.loader.load_model`.
        vocabularies: Vocabularies of methods whose drafts have other tokens than the model.

    Raises:
        ConfigError: The settings do not fit the machine or the model.
        ModelLoadError: The checkpoint cannot be used.
        NoKernelError: The backend cannot be used.
    """
    machine = machine or read_machine()
    plan = plan_engine(folder, config, machine)
    plan.check_memory(machine)  # weights that cannot fit are refused before they fill the memory
    placement = place(folder, plan.each, plan.model_config)
    given = _Given(eos_token_ids, on_progress, create_grammars, meanwhile, vocabularies or {})
    try:
        return _load(folder, plan, machine, placement, given)
    except BaseException:
        placement.close()
        raise


def _tell(plan: EnginePlan, lines: Iterable[str]) -> None:
    """Log the settings that differ from those asked for, and the values that were chosen."""
    for line in plan.resolved.notices:
        log.warning("%s", line)
    for line in (*plan.choices, *lines):
        log.info("%s", line)


@dataclass(frozen=True, slots=True)
class _Given:
    """Arguments of :func:`load_executor` besides settings."""

    eos_token_ids: tuple[int, ...]
    on_progress: Progress | None
    create_grammars: Callable[[ModelConfig], GrammarSource] | None
    meanwhile: Callable[[], object]
    vocabularies: Mapping[MethodName, VocabularyPair]


def _load(
    folder: Path,
    plan: EnginePlan,
    machine: Machine,
    placement: Placement,
    given: _Given,
) -> InProcessExecutor:
    own = plan.ranks[0]
    resolved, found, config = own.resolved, own.drafts, own.resolved.config
    backend = create_backend(resolved.device, threads=resolved.threads)
    parts = divide_progress(given.on_progress, [folder, *(draft.path for draft in found)])
    model = load(
        folder,
        backend,
        resolved,
        eos_token_ids=given.eos_token_ids,
        on_progress=parts[0],
        meanwhile=given.meanwhile,
        part=placement.part,
    )
    decoder = placement.model(model.decoder)
    drafts = {d: load_draft(d, decoder, part) for d, part in zip(found, parts[1:], strict=True)}
    demands = {draft: loaded.demand for draft, loaded in drafts.items()}
    loaded_heads = [load_head(head, decoder) for head in own.heads]
    reader, adapters = create_reader(model.decoder, backend, config.adapters, folder), None
    if reader is not None:
        adapters = AdapterStore(reader, config.adapters.num_held, placement.other_adapters())
    demand = with_heads(model.demand, loaded_heads)
    if adapters is not None:
        demand = replace(demand, scratch_bytes=demand.scratch_bytes + adapters.budget_bytes)
    memory = placement.settle(replace(own, demand=demand, drafts=demands).divide(machine))
    kernels = [f"kernel for {kind}: {name}" for kind, name in backend.kernel_names().items()]
    _tell(plan, (*memory.choices, *memory.lines(), *placement.lines(), *kernels))
    options = config.scheduler
    decoder.reserve(options.max_num_batched_tokens, options.max_logits_rows)
    num_blocks = memory.budget.num_blocks
    kv_cache = placement.kv_cache(backend.kv_cache(model.demand.spec, num_blocks))
    tiers = create_tiers(folder, model.config, resolved, kv_cache, backend)
    runner = ModelRunner(
        decoder,
        kv_cache,
        RunnerOptions(options.max_num_seqs, memory.max_model_len, model.config.eos_token_ids),
        RunnerParts(
            given.create_grammars and given.create_grammars(model.config),
            create_canary(kv_cache, config.cache.kv_canary),
            tiers or NoTiers(),
            model.pictures or NoPictures(),
            adapters or NoAdapters(),
        ),
    )
    methods = config.speculative.methods()
    if methods:
        pairs = given.vocabularies
        makers: dict[MethodName, Maker] = {
            d.method.method: drafts[d].maker(num_blocks, pairs.get(d.method.method)) for d in drafts
        }
        makers |= {head.method.method: head.maker(num_blocks) for head in loaded_heads}
        runner.speculate(methods, lambda table: create_proposers(methods, table, makers))
    forget_gguf()
    return InProcessExecutor(model, memory, runner, placement, adapters, tiers)
