"""The one decoder of all families: embedding, layers, final norm, head, or a stage of them.

T tokens of the step, L rows whose logits are wanted, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import Array, Backend, KVCache, Linear
from quire.kernels.batch.forward_batch import BatchRows, ForwardBatch
from quire.layers.adapters.adapter_slots import AdapterSlots
from quire.layers.decoder_layer import Layer
from quire.layers.parallel.rank_experts import RankExperts
from quire.layers.state_head import StateHead
from quire.layers.workspace import Activations, Workspace
from quire.models.input_embedding import InputEmbedding
from quire.models.shared_weights import SharedWeights
from quire.models.stage import Stage, StageLink


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """The parts of a decoder, as the loader made them.

    Attributes:
        config: Configuration of what this process has of each layer, all of it or a rank's share.
        embedded: Rows that enter the first layer; None in a later stage.
        layers: Layers, at least one.
        head: Matrix from D to V; the embedding itself where they are tied, or where there is none.
            None in a stage that is not the last.
        state_head: Head of pooled states.
        held: Weights that were made for this decoder.
        weight_bytes: Bytes of all weights and tables that were made for it.
        shared_bytes: Bytes of an output head that was made for another decoder.
        adapted: Slots of the parts that adapters may be added to; empty where none may.
        rank_experts: Experts of layers whose experts are divided over ranks.
    """

    config: ModelConfig
    embedded: InputEmbedding | None
    layers: Sequence[Layer]
    head: Linear | None
    state_head: StateHead
    held: SharedWeights
    weight_bytes: int
    shared_bytes: int
    adapted: Sequence[AdapterSlots] = ()
    rank_experts: Sequence[RankExperts] = ()


@dataclass(slots=True)
class HiddenStates:
    """Outputs of the final norm for some rows of a step.

    Attributes:
        states: (L, D), of the backend's ``activation_dtype``.
        rows: Rows of the batch that they are of; ``indices`` are never None.
        first: Index of the first among all outputs of the norm in the step.
    """

    states: Array
    rows: BatchRows
    first: int = 0

    def __len__(self) -> int:
        return int(self.states.shape[0])

    def __getitem__(self, part: slice) -> HiddenStates:
        """Return some of the rows, as views."""
        assert self.rows.indices is not None
        rows = BatchRows(self.rows.batch, self.rows.indices[part])
        return HiddenStates(self.states[part], rows, self.first + part.indices(len(self))[0])


class Capture(Protocol):
    """Keeps the residual stream of chosen layers."""

    def keep(self, layer: int, residual: Array) -> None:
        """Look at (T, D) ``residual``, which enters ``layer``."""
        ...


class Decoder:
    """A loaded model, or a stage of one.

    Attributes:
        config: Configuration of the model; ``dtype`` is the type its weights are held in.
        rank_config: Configuration of what this process has of it: heads of its KV cache, for one.
        stage: Stage of the model whose layers these are.
        max_model_len: Longest context its tables serve, in tokens.
        weight_bytes: Memory of all weights and tables, in bytes.
        held: Weights that another decoder of the checkpoint may share.
    """

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        max_model_len: int,
        parts: DecoderParts,
        stage: Stage,
    ) -> None:
        self.config, self.rank_config = config, parts.config
        self.stage = stage
        self.backend = backend
        self.max_model_len = max_model_len
        self.weight_bytes = parts.weight_bytes
        self.held = parts.held
        self._parts = parts
        planned = {layer.mixing.plan: layer.mixing.attention for layer in parts.layers}
        self._attentions = [planned[index] for index in range(len(planned))]
        self._workspace: Workspace | None = None
        self._logits: Array | None = None
        start = parts.embedded if stage.before is None else stage.before.recv
        assert start is not None, f"layers {stage.layers} are given no rows"
        self._start: Callable[[Activations], None] = start
        self._end = self._wanted_rows if stage.after is None else _Handed(stage.after)

    @property
    def embedding(self) -> Linear:
        """Embedding from V to D, looked up by token id.

        Raises:
            ConfigError: A stage before this one has it.
        """
        if self._parts.embedded is None:
            raise self._elsewhere("the embedding is")
        return self._parts.embedded.embedding

    @property
    def adapted(self) -> Sequence[AdapterSlots]:
        """Slots of the parts that adapters may be added to."""
        return self._parts.adapted

    @property
    def rank_experts(self) -> Sequence[RankExperts]:
        """Experts of its layers that are divided over ranks."""
        return self._parts.rank_experts

    @property
    def pass_bytes(self) -> int:
        """Weights that a step reads: its own, and an output head that it shares."""
        return self.weight_bytes + self._parts.shared_bytes

    @property
    def head(self) -> Linear:
        """Matrix that :meth:`logits` multiplies by; heads that draft multiply their own states.

        Raises:
            ConfigError: A stage after this one has the matrix.
        """
        if self._parts.head is None:
            raise self._elsewhere("the output head is")
        return self._parts.head

    def _elsewhere(self, what: str) -> ConfigError:
        return ConfigError(
            f"[pipeline] {what} another stage's; got {self.stage}. Run this "
            "without --pipeline-parallel-size."
        )

    @property
    def state_head(self) -> StateHead:
        """Head that pooled states go through."""
        return self._parts.state_head

    def reserve(self, max_tokens: int, max_logits_rows: int = 0) -> None:
        """Allocate activations for steps of up to ``max_tokens`` rows.

        Args:
            max_tokens: Most T of a step; a larger step reserves again.
            max_logits_rows: Most rows of :meth:`logits`, of a model that generates; more rows
                reserve again.
        """
        self._workspace = Workspace(self.backend, self.rank_config, max_tokens)
        if max_logits_rows and self.config.generates and self._parts.head is not None:
            self._reserve_logits(max_logits_rows)

    def forward(
        self,
        batch: ForwardBatch,
        kv_cache: KVCache,
        between_layers: Callable[[], None] | None = None,
        capture: Capture | None = None,
    ) -> HiddenStates:
        """Compute a step and store its K and V.

        Args:
            batch: The step's rows.
            kv_cache: The decoder's cache, read and written.
            between_layers: Function called after each layer but the last; what it raises ends the
                step, some of whose K and V are written then.
            capture: Capture that keeps all rows of the residual stream where they enter its layers,
                or None.

        Returns:
            States of the rows ``batch.logits_indices``; none of a stage that hands its rows on. The
            array belongs to the decoder: the next step overwrites it.
        """
        num_rows = max(batch.input_ids.shape[0], batch.logits_indices.shape[0])
        workspace = self._workspace
        if workspace is None or workspace.max_tokens < num_rows:
            self.reserve(num_rows)
            workspace = self._workspace
            assert workspace is not None
        parts = self._parts
        plans = [attention.plan(batch, kv_cache) for attention in self._attentions]
        step = workspace.all_rows(batch, plans)
        self._start(step)
        keep = capture.keep if capture is not None else _keep_nothing
        *earlier, last = parts.layers
        for index, layer in zip(self.stage.layers, earlier, strict=False):
            keep(index, step.residual)
            layer.attend(step)
            layer.feed(step)
            if between_layers is not None:
                between_layers()
        keep(self.stage.layers[-1], step.residual)
        last.attend(step)
        wanted = self._end(last, step, workspace)
        return HiddenStates(wanted.normed, wanted.rows)

    def _wanted_rows(self, last: Layer, step: Activations, workspace: Workspace) -> Activations:
        """End the model: past the last attention, only wanted rows are computed, each by itself."""
        batch = step.rows.batch
        wanted, indices = workspace.wanted_rows(batch), batch.logits_indices
        if indices.shape[0]:
            self.backend.gather_rows(step.attended, indices, wanted.attended)
            self.backend.gather_rows(step.residual, indices, wanted.residual)
            last.feed(wanted)
        return wanted

    def logits(self, hidden: HiddenStates) -> Array:
        """Multiply ``hidden`` with the head.

        Returns:
            (L, V) float32; on ranks other than the first those of their own tokens. The array
            belongs to the decoder: the next call overwrites it.

        Raises:
            ConfigError: A stage after this one has the head.
        """
        num_rows = len(hidden)
        if self._logits is None or self._logits.shape[0] < num_rows:
            self._logits = self._reserve_logits(num_rows)
        return self.head(hidden.states, self._logits[:num_rows], hidden.rows)

    def _reserve_logits(self, num_rows: int) -> Array:
        self._logits = self.backend.empty((num_rows, self.head.out_features))
        return self._logits


class _Handed:
    """The end of a stage that others follow: all rows are handed on."""

    def __init__(self, after: StageLink) -> None:
        self._after = after

    def __call__(self, last: Layer, step: Activations, workspace: Workspace) -> Activations:
        last.feed(step)
        self._after.send(step)
        batch = step.rows.batch
        return workspace.wanted_rows(replace(batch, logits_indices=batch.logits_indices[:0]))


def _keep_nothing(layer: int, residual: Array) -> None:
    """Stand in for a capture where there is none."""
