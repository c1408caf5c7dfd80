"""Draft heads: found and checked before the model whose states they read, loaded after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from quire.core.errors import ConfigError, QuireError
from quire.core.kv_cache_spec import DTYPE_BYTES
from quire.core.log import get_logger
from quire.core.memory_budget import MemoryDemand, format_bytes
from quire.core.model_config import ModelConfig
from quire.core.resolve import ResolvedConfig
from quire.core.speculative_config import SpeculativeMethod, refuse
from quire.models.decoder import Decoder
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.models.draft_heads.medusa import MedusaHeads, MedusaNames, load_medusa, read_medusa
from quire.models.hub import ASSETS, EMBEDDED, resolve_model
from quire.quantization.plan import create_plan
from quire.speculative.create import Maker
from quire.speculative.medusa import MedusaProposer

log = get_logger(__name__)

#: Methods whose drafter reads the target's states.
METHODS = ("medusa",)
#: Heads of the model in the package, by method.
EMBEDDED_HEADS = ASSETS / f"{EMBEDDED}-heads"


class NeedsMemory(Protocol):
    """A head, as far as memory is concerned."""

    @property
    def weight_bytes(self) -> int:
        """Of its own."""
        ...

    @property
    def scratch_bytes(self) -> int:
        """Buffers at the largest step."""
        ...


@dataclass(frozen=True, slots=True)
class FoundHead:
    """A head that is not loaded.

    Attributes:
        method: It is for.
        tensors: Its checkpoint, which fits the target.
        names: What the tensors are.
        settings: Of the engine.
        target: Shape of the target.
    """

    method: SpeculativeMethod
    tensors: HeadTensors
    names: MedusaNames
    settings: ResolvedConfig
    target: ModelConfig

    @property
    def weight_bytes(self) -> int:
        """At most: less where matrices are quantized."""
        return self.tensors.num_elements * DTYPE_BYTES[self.settings.dtype]

    @property
    def scratch_bytes(self) -> int:
        """States of each row, and logits."""
        num_rows = self.settings.config.scheduler.max_num_seqs
        return 4 * num_rows * (3 * self.target.hidden_size + self.target.vocab_size)

    def load(self, target: Decoder) -> LoadedHead:
        """Load it.

        Raises:
            ConfigError: The checkpoint cannot be used.
        """
        options = replace(
            self.settings.config.model,
            quantization=self.method.quantization,
            quantization_overrides=None,
            activations="int8",
        )
        scheme = create_plan(options).layers
        builder = HeadBuilder(self.tensors, target.backend, self.settings.dtype, scheme)
        try:
            heads = load_medusa(self.names, builder, target)
        except QuireError as error:
            raise _refuse(self.method, error) from error
        heads.reserve(self.settings.config.scheduler.max_num_seqs)
        log.info(
            "drafts by %s: %d Medusa heads, %s",
            self.tensors.path,
            heads.num_heads,
            format_bytes(heads.weight_bytes),
        )
        return LoadedHead(self.method, heads, self.scratch_bytes)


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head that is ready to compute.

    Attributes:
        method: It is for.
        heads: On the target's backend.
        scratch_bytes: Its buffers.
    """

    method: SpeculativeMethod
    heads: MedusaHeads
    scratch_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Of its own."""
        return self.heads.weight_bytes

    def maker(self, num_blocks: int) -> Maker:
        """Return what makes a table's proposer."""
        return lambda table: MedusaProposer(table, self.heads)


def find_heads(folder: Path, target: ModelConfig, resolved: ResolvedConfig) -> list[FoundHead]:
    """Return the heads that the settings ask for; weights are not read.

    Args:
        folder: The target's checkpoint.
        target: Its shape.
        resolved: The engine's settings.

    Raises:
        ConfigError: One of them cannot be used.
    """
    found = []
    for method in resolved.config.speculative.methods():
        if method.method in METHODS:
            try:
                tensors = HeadTensors(_find_folder(method, folder))
                names = read_medusa(tensors, target.hidden_size, target.vocab_size)
            except ConfigError:
                raise
            except QuireError as error:
                raise _refuse(method, error) from error
            found.append(FoundHead(method, tensors, names, resolved, target))
    return found


def with_heads(demand: MemoryDemand, heads: Iterable[NeedsMemory]) -> MemoryDemand:
    """Return what a target and its heads need."""
    for head in heads:
        demand = replace(
            demand,
            weight_bytes=demand.weight_bytes + head.weight_bytes,
            scratch_bytes=demand.scratch_bytes + head.scratch_bytes,
        )
    return demand


def _find_folder(method: SpeculativeMethod, target: Path) -> Path:
    """Return the folder with the heads: the model in the package has some of its own."""
    if method.model is not None:
        return resolve_model(method.model, method.revision)
    if target.resolve() != (ASSETS / EMBEDDED).resolve():
        refuse("model", f"must name a folder with heads for method {method.method}", None)
    return EMBEDDED_HEADS / method.method


def _refuse(method: SpeculativeMethod, error: QuireError) -> ConfigError:
    name = method.model or method.method
    return ConfigError(
        f"[config] --speculative-config must name a drafter that can be loaded; got {name}: {error}"
    )
