"""The one decoder of all families: embedding, layers, final norm, head; built by the loader.

T tokens of the step, L rows whose logits are wanted, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.core.model_config import ModelConfig
from quire.kernels.backend import Array, Backend, KVCache, Linear
from quire.kernels.forward_batch import BatchRows, ForwardBatch
from quire.layers.adapter_slots import AdapterSlots
from quire.layers.decoder_layer import Layer
from quire.layers.norm import Norm
from quire.layers.rank_experts import RankExperts
from quire.layers.residual_capture import ResidualCapture
from quire.layers.state_head import StateHead
from quire.layers.workspace import Workspace
from quire.models.held_weights import HeldWeights


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """What the loader made.

    Attributes:
        config: What this process has of each layer, all of it or a rank's share.
        embedding: Looked up by token id.
        positions: Learned positions (P, D), or None.
        token_types: (types, D), what is added to tokens that do not belong to the first text, whose
            row is 0; or None.
        first_norm: The first layer's attention norm.
        layers: At least one.
        head: D to V; the embedding itself where they are tied, or where there is none.
        state_head: Of pooled states.
        held: What of it was made for this decoder.
        weight_bytes: Memory of all weights and tables that were made for it.
        shared_bytes: That of an output head that was made for another one.
        adapted: Of its parts, those that adapters may be added to; empty where none may.
        rank_experts: Of layers whose experts are divided over ranks.
    """

    config: ModelConfig
    embedding: Linear
    positions: Array | None
    token_types: Array | None
    first_norm: Norm
    layers: Sequence[Layer]
    head: Linear
    state_head: StateHead
    held: HeldWeights
    weight_bytes: int
    shared_bytes: int
    adapted: Sequence[AdapterSlots] = ()
    rank_experts: Sequence[RankExperts] = ()


@dataclass(slots=True)
class HiddenStates:
    """What the final norm made of some rows of a step.

    Attributes:
        states: (L, D), of the backend's ``activation_dtype``.
        rows: Which rows they are; ``indices`` are never None.
        first: Where they begin among all that the norm made in the step.
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


class Decoder:
    """A loaded model.

    Attributes:
        config: What it looks like; ``dtype`` is the type its weights are held in.
        rank_config: The same of what this process has of it: heads of its KV cache, for one.
        max_model_len: Longest context its tables serve, in tokens.
        weight_bytes: Memory of all weights and tables, in bytes.
        held: Weights that another decoder of the checkpoint may share.
    """

    def __init__(
        self, config: ModelConfig, backend: Backend, max_model_len: int, parts: DecoderParts
    ) -> None:
        self.config, self.rank_config = config, parts.config
        self.backend = backend
        self.max_model_len = max_model_len
        self.weight_bytes = parts.weight_bytes
        self.held = parts.held
        self._parts = parts
        planned = {layer.mixing.plan: layer.mixing.attention for layer in parts.layers}
        self._attentions = [planned[index] for index in range(len(planned))]
        self._workspace: Workspace | None = None
        self._logits: Array | None = None

    @property
    def embedding(self) -> Linear:
        """Looked up by token id; V to D."""
        return self._parts.embedding

    @property
    def adapted(self) -> Sequence[AdapterSlots]:
        """Its parts that adapters may be added to."""
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
        """What :meth:`logits` multiplies with; heads that draft multiply states of their own."""
        return self._parts.head

    @property
    def state_head(self) -> StateHead:
        """What pooled states go through."""
        return self._parts.state_head

    def reserve(self, max_tokens: int, max_logits_rows: int = 0) -> None:
        """Allocate activations for steps of up to ``max_tokens`` rows.

        Args:
            max_tokens: Most T of a step; a larger step reserves again.
            max_logits_rows: Most rows of :meth:`logits`, of a model that generates; more rows
                reserve again.
        """
        self._workspace = Workspace(self.backend, self.rank_config, max_tokens)
        if max_logits_rows and self.config.generates:
            self._logits = self.backend.empty((max_logits_rows, self._parts.head.out_features))

    def forward(
        self,
        batch: ForwardBatch,
        kv_cache: KVCache,
        between_layers: Callable[[], None] | None = None,
        capture: ResidualCapture | None = None,
    ) -> HiddenStates:
        """Compute a step and store its K and V.

        Args:
            batch: The step's rows.
            kv_cache: Read and written.
            between_layers: Called after each layer but the last; what it raises ends the step, some
                of whose K and V are written then.
            capture: Keeps all rows of the residual stream where they enter its layers, or None.

        Returns:
            Those of the rows ``batch.logits_indices``. The array belongs to the decoder: the next
            step overwrites it.
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
        parts.embedding.lookup(batch.input_ids, step.residual, step.rows)
        if self.config.embedding_scale != 1:
            self.backend.scale(step.residual, self.config.embedding_scale, step.residual)
        if batch.embedding_rows is not None:
            self.backend.scatter_rows(batch.embeddings, batch.embedding_rows, step.residual)
        if parts.positions is not None:
            self.backend.add_rows(step.residual, parts.positions, batch.positions)
        if parts.token_types is not None and batch.token_types is not None:
            self.backend.add_rows(step.residual, parts.token_types, batch.token_types)
        parts.first_norm(step.residual, step.normed, None, step.rows)
        keep = capture.keep if capture is not None else _keep_nothing
        *earlier, last = parts.layers
        for index, layer in enumerate(earlier):
            keep(index, step.residual)
            layer.attend(step)
            layer.feed(step)
            if between_layers is not None:
                between_layers()
        keep(len(earlier), step.residual)
        last.attend(step)
        # Past the last attention, rows are on their own: only the wanted ones go on.
        wanted, indices = workspace.wanted_rows(batch), batch.logits_indices
        if indices.shape[0]:
            self.backend.gather_rows(step.attended, indices, wanted.attended)
            self.backend.gather_rows(step.residual, indices, wanted.residual)
            last.feed(wanted)
        return HiddenStates(wanted.normed, wanted.rows)

    def logits(self, hidden: HiddenStates) -> Array:
        """Multiply ``hidden`` with the head.

        Returns:
            (L, V) float32; on ranks other than the first those of their own tokens. The array
            belongs to the decoder: the next call overwrites it.
        """
        num_rows = len(hidden)
        if self._logits is None or self._logits.shape[0] < num_rows:
            self._logits = self.backend.empty((num_rows, self._parts.head.out_features))
        return self._parts.head(hidden.states, self._logits[:num_rows], hidden.rows)


def _keep_nothing(layer: int, residual: Array) -> None:
    """Stand in for a capture where there is none."""
