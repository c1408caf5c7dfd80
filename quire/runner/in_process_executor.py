"""Loads a model into this process and runs plans on it; what to run is the engine's business."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from quire.core.config import EngineConfig
from quire.core.kv_cache_spec import KVCacheSpec
from quire.core.log import get_logger
from quire.core.machine import Machine, read_machine
from quire.core.memory_budget import MemoryDemand
from quire.core.metrics import Samples
from quire.core.model_config import ModelConfig
from quire.core.resolve import ResolvedConfig, resolve
from quire.core.step import SchedulerOutput, StepOutput
from quire.core.structured_outputs import GrammarSource
from quire.kernels.registry import create_backend
from quire.layers.workspace import workspace_bytes
from quire.models.config_reader import read_model_config
from quire.models.gguf_file import forget_gguf
from quire.models.loader import Progress, load_model
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.plan import create_plan
from quire.runner.kv_canary import KVCanary
from quire.runner.memory import Ledger, draw_up_ledger, table_bytes
from quire.runner.model_runner import LOGITS_CHUNK_ROWS, ModelRunner, RunnerOptions
from quire.runner.step_estimate import StepEstimate

log = get_logger(__name__)


class InProcessExecutor:
    """A loaded model with its KV cache; see :class:`quire.engine.executor.Executor`.

    Args:
        folder: The checkpoint, a folder or a GGUF file.
        config: The engine's settings.
        eos_token_ids: Ids that end a sequence, besides those of ``config.json``.
        machine: What may be used; measured when None.
        on_progress: Called while weights load, with bytes done and bytes in all.
        create_grammars: Given the model's shape, makes the source of structured outputs' grammars.

    Attributes:
        model_config: The decoder's shape, its dtype resolved, with all end-of-sequence ids.
        resolved: The settings, nothing left open.
        ledger: Where the memory goes.

    Raises:
        ConfigError: The settings do not fit the machine or the model.
        ModelLoadError: The checkpoint cannot be used.
        NoKernelError: The backend cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        config: EngineConfig,
        *,
        eos_token_ids: tuple[int, ...] = (),
        machine: Machine | None = None,
        on_progress: Progress | None = None,
        create_grammars: Callable[[ModelConfig], GrammarSource] | None = None,
    ) -> None:
        machine = machine or read_machine()
        model_config = read_model_config(folder)
        self.resolved = resolved = resolve(config, machine, model_config)
        backend = create_backend(resolved.device, threads=resolved.threads)
        # Weights that cannot fit are refused before they fill the memory.
        expected = expected_weight_bytes(
            folder,
            model_config,
            resolved.dtype,
            create_plan(config.model),
            resolved.max_model_len,
        )
        device_bytes = max(machine.free_bytes, resolved.memory_bytes)
        demand = _demand(model_config, resolved, expected, backend.activation_dtype)
        draw_up_ledger(resolved, demand, device_bytes)
        model = load_model(
            folder,
            backend,
            dtype=resolved.dtype,
            plan=create_plan(config.model),
            max_model_len=resolved.max_model_len,
            packed_cache=config.model.packed_weights_cache,
            on_progress=on_progress,
        )
        eos = _possible((*model.config.eos_token_ids, *eos_token_ids), model.config.vocab_size)
        self.model_config = replace(model.config, eos_token_ids=eos)
        demand = _demand(model.config, resolved, model.weight_bytes, backend.activation_dtype)
        self.ledger: Ledger = draw_up_ledger(resolved, demand, device_bytes)
        for line in (*resolved.choices, *self.ledger.choices, *self.ledger.lines()):
            log.info("%s", line)
        for kind, kernel in backend.kernel_names().items():
            log.info("kernel for %s: %s", kind, kernel)
        options = config.scheduler
        model.reserve(options.max_num_batched_tokens, _logits_rows(resolved))
        self.kv_cache_spec = demand.spec
        self.num_blocks = self.ledger.budget.num_blocks
        prepared = RunnerOptions(options.max_num_seqs, self.ledger.max_model_len, eos)
        kv_cache = backend.kv_cache(self.kv_cache_spec, self.num_blocks)
        mode = config.cache.kv_canary
        self._canary = None if mode == "off" else KVCanary(kv_cache, mode)
        self._estimate = StepEstimate(model.config, model.weight_bytes, demand.spec)
        self._runner: ModelRunner | None = ModelRunner(
            model,
            backend,
            kv_cache,
            prepared,
            create_grammars and create_grammars(self.model_config),
            self._canary,
        )
        forget_gguf()

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """Compute one step; see the protocol."""
        assert self._runner is not None, "execute after shutdown"
        self._estimate.add(plan)
        return self._runner.execute(plan)

    def stats(self) -> Samples:
        """Return the memory of each pool and the estimated work so far, by metric stem."""
        budget = self.ledger.budget
        values: Samples = {
            'memory_bytes{pool="weights"}': budget.weight_bytes,
            'memory_bytes{pool="scratch"}': budget.scratch_bytes,
            'memory_bytes{pool="kv_cache"}': budget.kv_bytes,
            "kv_canary_checks": 0,
            "kv_canary_failures": 0,
        }
        values |= self._estimate.samples()
        return values if self._canary is None else values | self._canary.samples()

    def shutdown(self) -> None:
        """Let go of weights and KV cache."""
        self._runner = None


def _possible(eos_token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return the ids that the model can produce, each once; say which ones it cannot."""
    ids = tuple(dict.fromkeys(eos_token_ids))
    possible = tuple(token_id for token_id in ids if 0 <= token_id < vocab_size)
    beyond = sorted(set(ids) - set(possible))
    if beyond:
        log.warning(
            "end-of-sequence ids %s are beyond the vocabulary of %d: they cannot end a text",
            beyond,
            vocab_size,
        )
    return possible


def _logits_rows(resolved: ResolvedConfig) -> int:
    return max(resolved.config.scheduler.max_num_seqs, LOGITS_CHUNK_ROWS)


def _demand(
    config: ModelConfig, resolved: ResolvedConfig, weight_bytes: int, activation_dtype: str
) -> MemoryDemand:
    """Return what the model needs at the largest step."""
    options = resolved.config.scheduler
    spec = KVCacheSpec(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=resolved.config.cache.block_size,
        dtype=resolved.kv_cache_dtype,
    )
    # Besides the step's logits there are copies of a chunk for sampling and for log-probabilities.
    logits_rows = _logits_rows(resolved) + 2 * LOGITS_CHUNK_ROWS
    scratch = workspace_bytes(config, options.max_num_batched_tokens, activation_dtype)
    scratch += 4 * logits_rows * config.vocab_size
    scratch += table_bytes(options.max_num_seqs, resolved.max_model_len, spec)
    return MemoryDemand(
        weight_bytes=weight_bytes,
        weight_dtype=resolved.dtype,
        scratch_bytes=scratch,
        spec=spec,
        max_model_len=resolved.max_model_len,
    )
