"""Draft heads: found and checked before their target, whose states they read, and loaded after."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.embedded import ASSETS, EMBEDDED
from quire.core.counts import format_bytes
from quire.core.errors import ConfigError, QuireError
from quire.core.model.kv_cache_spec import DTYPE_BYTES, KVCacheSpec
from quire.core.model.model_config import ModelConfig
from quire.core.speculative_config import SpeculativeMethod, refuse, refuse_drafter
from quire.kernels.backend import Backend
from quire.layers.rope import rope_table_bytes
from quire.models.draft_heads import recurrent
from quire.models.draft_heads.eagle import load_eagle, read_eagle
from quire.models.draft_heads.eagle3 import load_eagle3, read_eagle3
from quire.models.draft_heads.head_layer import HeadShape
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.models.draft_heads.medusa import MedusaNames, load_medusa, read_medusa
from quire.models.draft_heads.mtp import load_mtp, read_mtp
from quire.models.draft_heads.mtp_layouts import first_module
from quire.models.draft_heads.recurrent import RecurrentHead
from quire.models.model import Model
from quire.planner.memory_budget import KVPool, MemoryDemand
from quire.quantization.quantization_plan import create_plan
from quire.settings.known_settings import settle_quantization
from quire.settings.resolve import ResolvedConfig
from quire.speculative.create_proposers import Maker
from quire.speculative.drafters.draft_prefill import MOST_PAIRS, most_tokens
from quire.speculative.drafters.medusa import MedusaProposer
from quire.speculative.drafters.parallel import MAX_LOGITS, ParallelProposer
from quire.speculative.drafters.recurrent import MAX_KEPT, RecurrentProposer
from quire.store.hub import resolve_model
from quire.system.log import get_logger

log = get_logger(__name__)

#: Methods whose drafter reads the target's states.
METHODS = ("medusa", "eagle", "eagle3", "mtp")
#: Heads of the model in the package, by method.
EMBEDDED_HEADS = ASSETS / f"{EMBEDDED}-heads"

ReadRecurrent = Callable[[HeadTensors, ModelConfig], HeadShape]
LoadRecurrent = Callable[[HeadShape, HeadBuilder, Model, int], RecurrentHead]
RECURRENT: dict[str, tuple[ReadRecurrent, LoadRecurrent]] = {
    "eagle": (read_eagle, load_eagle),
    "eagle3": (read_eagle3, load_eagle3),
    "mtp": (read_mtp, load_mtp),
}


@dataclass(frozen=True, slots=True)
class HeadFolder:
    """A head's checkpoint, with its method and engine.

    Attributes:
        method: The method that the head drafts for.
        tensors: Tensors of the head's checkpoint.
        settings: Settings of the engine.
    """

    method: SpeculativeMethod
    tensors: HeadTensors
    settings: ResolvedConfig

    @property
    def max_rows(self) -> int:
        """Number of rows that draft at once, at most."""
        return self.settings.config.scheduler.max_num_seqs

    @property
    def max_tokens(self) -> int:
        """Tokens that a head with a cache computes at once, at most."""
        budget = self.settings.config.scheduler.max_num_batched_tokens
        return most_tokens(budget, MOST_PAIRS)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, at most: less where matrices are quantized."""
        return self.tensors.num_elements * DTYPE_BYTES[self.settings.dtype]

    def builder(self, backend: Backend) -> HeadBuilder:
        """Return a builder that packs the head's tensors."""
        # A head's own weights are floats, whatever its target's are.
        rounded, _ = settle_quantization(self.method.quantization, stored="")
        options = replace(
            self.settings.config.model,
            quantization=rounded,
            quantization_overrides=None,
            activations="int8",
        )
        scheme = create_plan(options).layers
        return HeadBuilder(self.tensors, backend, self.settings.dtype, scheme)


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head that is ready to compute.

    Attributes:
        method: The method that the head drafts for.
        weight_bytes: Bytes of the head's own weights.
        scratch_bytes: Bytes of buffers at the largest step.
        spec: Description of the head's KV cache, or None.
        maker: A function that allocates a KV cache of a number of blocks, if the head has one, and
            returns a maker of the proposer of a token table.
    """

    method: SpeculativeMethod
    weight_bytes: int
    scratch_bytes: int
    spec: KVCacheSpec | None
    maker: Callable[[int], Maker]


@dataclass(frozen=True, slots=True)
class FoundHead(ABC):
    """A head that is not loaded.

    Attributes:
        folder: The head's checkpoint.
    """

    folder: HeadFolder

    @property
    def weight_bytes(self) -> int:
        """Bytes of the head's own weights."""
        return self.folder.weight_bytes

    @property
    @abstractmethod
    def scratch_bytes(self) -> int:
        """Bytes of buffers at the largest step."""

    @property
    def spec(self) -> KVCacheSpec | None:
        """Description of the head's KV cache, or None."""
        return None

    @abstractmethod
    def load(self, target: Model) -> LoadedHead:
        """Load the head.

        Raises:
            ConfigError: The checkpoint cannot be used.
        """


@dataclass(frozen=True, slots=True)
class FoundMedusa(FoundHead):
    """Medusa heads that are not loaded."""

    names: MedusaNames
    target: ModelConfig

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the states of each row, and of logits."""
        return 4 * self.folder.max_rows * (3 * self.target.hidden_size + self.target.vocab_size)

    def load(self, target: Model) -> LoadedHead:
        """Load the heads."""
        heads = load_medusa(self.names, self.folder.builder(target.backend), target)
        heads.reserve(self.folder.max_rows)
        method, nbytes = self.folder.method, heads.weight_bytes

        def maker(num_blocks: int) -> Maker:
            return lambda table: MedusaProposer(table, heads)

        return LoadedHead(method, nbytes, self.scratch_bytes, None, maker)


@dataclass(frozen=True, slots=True)
class FoundRecurrent(FoundHead):
    """A head with a layer that is not loaded."""

    shape: HeadShape
    load_head: LoadRecurrent
    activation_dtype: str

    @property
    def weight_bytes(self) -> int:
        """Bytes of the head's own weights and its tables of RoPE."""
        rope, max_positions = self.shape.config.rope, self.folder.settings.max_model_len
        tables = 0 if rope is None else rope_table_bytes(rope, max_positions)
        return self.folder.weight_bytes + tables

    @property
    def scratch_bytes(self) -> int:
        """Bytes of activations, logits, waiting states, and states that the target keeps for it."""
        config, width = self.shape.config, max(len(self.shape.layers), 1)
        max_tokens = self.folder.settings.config.scheduler.max_num_batched_tokens
        kept = MAX_KEPT + 2 * max_tokens
        nbytes = DTYPE_BYTES[self.activation_dtype] * kept * width * config.hidden_size
        return nbytes + recurrent.scratch_bytes(
            config, self.max_tokens, self.max_logits, self.shape.draft_size, self.activation_dtype
        )

    @property
    def max_tokens(self) -> int:
        """Pairs that are computed at once, at most, those of masks included."""
        return self.folder.max_tokens + self._max_masks

    @property
    def max_logits(self) -> int:
        """Rows of logits at once, at most."""
        return max(self.folder.max_rows, self._max_masks)

    @property
    def _max_masks(self) -> int:
        return 0 if self.shape.mask_token_id is None else MAX_LOGITS

    @property
    def spec(self) -> KVCacheSpec:
        """Description of the head's KV cache."""
        config, settings = self.shape.config, self.folder.settings
        return config.kv_cache_spec(settings.config.cache.block_size, settings.kv_cache_dtype)

    def load(self, target: Model) -> LoadedHead:
        """Load the head."""
        settings, method, spec = self.folder.settings, self.folder.method, self.spec
        builder = self.folder.builder(target.backend)
        head = self.load_head(self.shape, builder, target, settings.max_model_len)
        head.reserve(self.max_tokens, self.max_logits)
        limits = [settings.max_model_len, method.max_model_len]
        most = min(limit for limit in limits if limit is not None)
        sizes = most, self.folder.max_tokens, head.pass_shape(target.head, spec.token_bytes)
        kind: type[RecurrentProposer] = RecurrentProposer
        if head.mask is not None and method.parallel_drafting is not False:
            kind = ParallelProposer

        def maker(num_blocks: int) -> Maker:
            kv_cache = head.backend.kv_cache(spec, num_blocks)
            return lambda table: kind(table, head, kv_cache, *sizes)

        return LoadedHead(method, head.weight_bytes, self.scratch_bytes, spec, maker)


def find_heads(
    folder: Path, target: ModelConfig, resolved: ResolvedConfig, activation_dtype: str
) -> list[FoundHead]:
    """Return the heads that the settings ask for; weights are not read.

    Args:
        folder: The target's checkpoint.
        target: The target's shape.
        resolved: The engine's settings.
        activation_dtype: The backend's dtype of activations.

    Raises:
        ConfigError: A head cannot be used.
    """
    found: list[FoundHead] = []
    for method in resolved.config.speculative.methods():
        if method.method in METHODS:
            try:
                found.append(_find(method, folder, target, resolved, activation_dtype))
            except ConfigError:
                raise
            except QuireError as error:
                raise refuse_drafter(method, error) from error
    return found


def load_head(found: FoundHead, target: Model) -> LoadedHead:
    """Load a head.

    Raises:
        ConfigError: The checkpoint cannot be used.
    """
    method = found.folder.method
    try:
        loaded = found.load(target)
    except QuireError as error:
        raise refuse_drafter(method, error) from error
    name = method.model or f"the {method.method} heads of {found.folder.tensors.path}"
    log.info("drafts by %s: %s", name, format_bytes(loaded.weight_bytes))
    return loaded


def _find(
    method: SpeculativeMethod,
    folder: Path,
    target: ModelConfig,
    resolved: ResolvedConfig,
    activation_dtype: str,
) -> FoundHead:
    own = HeadFolder(method, _find_tensors(method, folder, target), resolved)
    if method.method == "medusa":
        names = read_medusa(own.tensors, target.hidden_size, target.vocab_size)
        return FoundMedusa(own, names, target)
    read, load = RECURRENT[method.method]
    shape = read(own.tensors, target)
    if method.parallel_drafting and shape.mask_token_id is None:
        rule = f"must be left out: the head in {own.tensors.path} drafts one token after the other"
        refuse("parallel_drafting", rule, True)
    return FoundRecurrent(own, shape, load, activation_dtype)


def with_heads(demand: MemoryDemand, heads: Iterable[FoundHead | LoadedHead]) -> MemoryDemand:
    """Return the memory that a target and its heads need."""
    for head in heads:
        demand = replace(
            demand,
            weight_bytes=demand.weight_bytes + head.weight_bytes,
            scratch_bytes=demand.scratch_bytes + head.scratch_bytes,
            pools=demand.pools if head.spec is None else (*demand.pools, KVPool(head.spec)),
        )
    return demand


def _find_tensors(method: SpeculativeMethod, folder: Path, target: ModelConfig) -> HeadTensors:
    """Return the tensors of the heads: some checkpoints include them."""
    if method.model is not None:
        return HeadTensors(resolve_model(method.model, method.revision))
    if folder.resolve() == (ASSETS / EMBEDDED).resolve():
        return HeadTensors(EMBEDDED_HEADS / method.method)
    rule = f"must name a folder with heads for method {method.method}"
    if method.method == "mtp":
        files = Checkpoint(folder).files if folder.is_dir() else {}
        names = first_module(files.keys(), target.num_layers)
        if names:
            return HeadTensors(folder, {name: files[name] for name in sorted(names)})
        rule += f", as there is no module in {folder}"
    refuse("model", rule, None)
