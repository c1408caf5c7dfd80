"""Heads that draft one token after the other by one decoder layer: EAGLE, EAGLE-3, MTP modules.

At position p such a head reads a pair, (feature of position p - 1, token p), attends to the pairs
before it and predicts token p + 1; its own output is the feature of position p in a draft. T pairs
of a step, L of them whose outputs are wanted, S width of the target's states, D model dim of the
head, V vocabulary, W that of the draft.

Published code numbers a pair by its feature, one lower; the rotary embedding tells distances only,
so that weights mean the same here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from quire.core.model.forward_work import PassShape, decoder_shape
from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import Array, Backend, ChainShape, DraftChain, KVCache, Linear
from quire.kernels.batch.forward_batch import BatchRows, ForwardBatch
from quire.layers.decoder_layer import Layer
from quire.layers.norm import Norm
from quire.layers.workspace import Activations, Workspace, workspace_bytes
from quire.models.draft_heads.state_norms import StateNorms

#: Buffers (T, D) besides those of a decoder: embeddings, features, and both side by side.
NUM_BUFFERS = 4
#: Most pairs whose steps are taken in one call; more of them take long enough as it is.
MAX_CHAIN_ROWS = 16


class PairInput(Protocol):
    """Entry of pairs into the layer."""

    def __call__(self, pair: Pair, features: Array, layer: Layer, step: Activations) -> None:
        """Fill ``step.residual`` and the inputs of the layer's attention.

        Args:
            pair: Buffers of the pairs, with embeddings; may be overwritten.
            features: (T, D), read before the layer's input is written; no buffer of ``pair``.
            layer: The layer that makes queries, keys and values.
            step: Activations of all pairs.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pair:
    """Room for the embeddings and features of a step, and for both side by side.

    Attributes:
        both: (2 T, D): the embeddings, then the features; uninitialised.
        embeds, features: (T, D), parts of ``both``.
        wide: (2 T, D), uninitialised; ``both`` where T is 1.
        order: (2 T,) int32 rows of ``both``: embedding and feature of each pair in turn.
        rows: (T,) int32 numbers from 0.
        backend: The backend of the arrays.
    """

    both: Array
    embeds: Array
    features: Array
    wide: Array
    order: Array
    rows: Array
    backend: Backend

    def side_by_side(self) -> Array:
        """Return (T, 2 D): embeddings, then features."""
        num_rows, size = self.embeds.shape
        if num_rows > 1:
            self.backend.gather_rows(self.both, self.order, self.wide)
        return self.wide.reshape(num_rows, 2 * size)

    def copy(self, states: Array, out: Array) -> None:
        """Copy (T, D)."""
        self.backend.gather_rows(states, self.rows, out)


class PairBuffers:
    """Buffers allocated once, cut to the step's pairs by cached views.

    Args:
        backend: The backend that allocates them.
        max_pairs: Most T of a step.
        size: D.
    """

    def __init__(self, backend: Backend, max_pairs: int, size: int) -> None:
        dtype = backend.activation_dtype
        self._backend = backend
        self._both, self._wide = (backend.empty((2 * max_pairs, size), dtype) for _ in range(2))
        self._pairs: dict[int, Pair] = {}

    def pair(self, num_pairs: int) -> Pair:
        """Return the buffers of T = ``num_pairs``; they share memory with those of all other T."""
        found = self._pairs.get(num_pairs)
        if found is None:
            backend, both = self._backend, self._both[: 2 * num_pairs]
            wide = self._wide[: 2 * num_pairs] if num_pairs > 1 else both
            numbers = np.arange(2 * num_pairs, dtype=np.int32)
            order = backend.from_numpy(numbers.reshape(2, num_pairs).T.reshape(-1).copy())
            rows = backend.from_numpy(numbers[:num_pairs])
            parts = both[:num_pairs], both[num_pairs:]
            found = self._pairs[num_pairs] = Pair(both, *parts, wide, order, rows, backend)
        return found


@dataclass(frozen=True, slots=True)
class MixedEntry:
    """Entry through one matrix, as in EAGLE and MTP modules: the mix is the residual.

    Attributes:
        mix: Matrix from 2 D to D.
        embed_norm, feature_norm: Norms before that matrix, or None.
        input_norm: Norm of the layer's input, or None.
    """

    mix: Linear
    embed_norm: Norm | None = None
    feature_norm: Norm | None = None
    input_norm: Norm | None = None

    def __call__(self, pair: Pair, features: Array, layer: Layer, step: Activations) -> None:
        """Mix, then queries, keys and values of the mix."""
        if self.embed_norm is not None:
            self.embed_norm(pair.embeds, pair.embeds)
        if self.feature_norm is not None:
            self.feature_norm(features, pair.features)
        else:
            pair.copy(features, pair.features)
        self.mix(pair.side_by_side(), step.residual, step.rows)
        entering = step.residual
        if self.input_norm is not None:
            entering = self.input_norm(step.residual, step.normed)
        layer.mixing.project(entering, step)


@dataclass(frozen=True, slots=True)
class WideEntry:
    """Entry side by side, into attention of double width (EAGLE-3): the feature is the residual.

    Attributes:
        embed_norm, feature_norm: Norms before the attention.
        adds_normed: Whether the feature is added after its norm and not before.
    """

    embed_norm: Norm
    feature_norm: Norm
    adds_normed: bool = False

    def __call__(self, pair: Pair, features: Array, layer: Layer, step: Activations) -> None:
        """Keep the feature, then queries, keys and values of both."""
        self.embed_norm(pair.embeds, pair.embeds)
        self.feature_norm(features, pair.features)
        pair.copy(pair.features if self.adds_normed else features, step.residual)
        layer.mixing.project(pair.side_by_side(), step)


class Addition:
    """The sum itself, in place of a last norm."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rows: Array = backend.from_numpy(np.arange(1, dtype=np.int32))

    def __call__(
        self, x: Array, out: Array, residual: Array | None = None, rows: BatchRows | None = None
    ) -> Array:
        """Add ``x`` to ``residual`` and write the sum to ``out``."""
        assert residual is not None, "a layer ends with an addition"
        num_rows = x.shape[0]
        if num_rows > self._rows.shape[0]:
            self._rows = self._backend.from_numpy(np.arange(2 * num_rows, dtype=np.int32))
        own = self._rows[:num_rows]
        self._backend.add_rows(residual, x, own)
        return self._backend.gather_rows(residual, own, out)


@dataclass(frozen=True, slots=True)
class MaskPair:
    """Stand-in for a pair that is not known yet, in heads that draft several tokens at once.

    Attributes:
        token_id: Id of its token.
        state: (S,), in place of the target's.
    """

    token_id: int
    state: Array


@dataclass(frozen=True, slots=True)
class HeadParts:
    """The parts of a head, as a loader made them.

    Attributes:
        embedding: Embedding of tokens; the target's or the head's own.
        fc: Matrix from S to D that makes features of the target's states; None where states are
            features.
        entry: Entry of pairs into ``layer``.
        layer: Layer of the head; its last norm is the one before ``output``.
        output: Matrix from D to W.
        draft_ids: (W,) int64, ids of the target; None where the vocabularies are the same.
        weight_bytes: Bytes of all weights that are not the target's.
        feeds_normed: Whether a draft's feature is the output after the last norm, not before.
        further: Layers after ``layer``, the last of which has the last norm then.
        state_norm: Norm of the target's states, before ``fc``.
        mask: Mask of a head that drafts several tokens at once.
    """

    embedding: Linear
    fc: Linear | None
    entry: PairInput
    layer: Layer
    output: Linear
    draft_ids: np.ndarray | None
    weight_bytes: int
    feeds_normed: bool = False
    further: tuple[Layer, ...] = ()
    state_norm: StateNorms | None = None
    mask: MaskPair | None = None


class RecurrentHead:
    """A loaded head.

    Args:
        config: Shape of its layers; ``vocab_size`` is the target's.
        backend: The target's backend.
        parts: The head's parts.
        layers: Layers of the target at whose entry it reads states; empty for those of the final
            norm.
    """

    def __init__(
        self, config: ModelConfig, backend: Backend, parts: HeadParts, layers: tuple[int, ...]
    ) -> None:
        self.config = config
        self.backend = backend
        self.layers = layers
        self.weight_bytes = parts.weight_bytes
        self.state_size = config.hidden_size if parts.fc is None else parts.fc.in_features
        self.mask = parts.mask
        self._parts = parts
        self.reserve(1, 1)

    def reserve(self, max_tokens: int, max_rows: int) -> None:
        """Allocate for the most pairs and rows of logits of a step; more reserve again."""
        backend, size = self.backend, self.config.hidden_size
        self._workspace = Workspace(backend, self.config, max_tokens)
        self._pairs = PairBuffers(backend, max_tokens, size)
        self._chains: dict[int, DraftChain | None] = {}  # by L; they have these buffers
        self._drafted = backend.empty((max_rows, self._parts.output.out_features))
        self._logits = self._drafted
        if self._parts.draft_ids is not None:
            self._logits = backend.empty((max_rows, self.config.vocab_size))
            self._draft_ids = backend.from_numpy(self._parts.draft_ids.astype(np.int32))

    def pass_shape(self, target: Linear, kv_token_bytes: int) -> PassShape:
        """Return what a pass takes; ``fc`` is taken to be in each.

        Args:
            target: Output head of the target, which may be this one's, too.
            kv_token_bytes: KV of a pair.
        """
        parts, inputs = self._parts, self._parts.layer.mixing.inputs
        weight_bytes = self.weight_bytes + (target.nbytes if parts.output is target else 0)
        layer = decoder_shape(self.config, weight_bytes, kv_token_bytes)
        entering = (inputs.in_features - self.config.hidden_size) * inputs.out_features
        mix = parts.entry.mix if isinstance(parts.entry, MixedEntry) else None
        for linear in (mix, parts.fc):
            entering += 0 if linear is None else linear.in_features * linear.out_features
        return replace(
            layer,
            token_flops=layer.token_flops + 2 * entering,
            logits_flops=2 * parts.output.in_features * parts.output.out_features,
        )

    def features(self, states: Array) -> Array:
        """Return features (T, D) of the target's states (T, S)."""
        fc, norm = self._parts.fc, self._parts.state_norm
        if norm is not None:
            states = norm(states)
        return states if fc is None else fc(states)

    def forward(
        self, batch: ForwardBatch, features: Array, kv_cache: KVCache
    ) -> tuple[Array, Array]:
        """Compute pairs and store their K and V.

        Args:
            batch: The step's rows, whose ``input_ids`` are the tokens of the pairs.
            features: (T, D) of the pairs.
            kv_cache: The head's cache, read and written.

        Returns:
            The outputs (L, D) of ``batch.logits_indices``, and their logits (L, V) float32. The
            arrays are the head's: the next call overwrites them.
        """
        parts, num_rows = self._parts, batch.input_ids.shape[0]
        num_wanted = batch.logits_indices.shape[0]
        if num_rows > self._workspace.max_tokens or num_wanted > self._drafted.shape[0]:
            self.reserve(
                max(num_rows, self._workspace.max_tokens),
                max(num_wanted, self._drafted.shape[0]),
            )
        layer, pair = parts.layer, self._pairs.pair(num_rows)
        step = self._workspace.all_rows(batch, [layer.mixing.attention.plan(batch, kv_cache)])
        parts.embedding.lookup(batch.input_ids, pair.embeds, step.rows)
        parts.entry(pair, features, layer, step)
        layer.mixing.attend(step)
        for following in parts.further:
            layer.feed(step)
            following.attend(step)
            layer = following
        wanted, indices = self._workspace.wanted_rows(batch), batch.logits_indices
        if num_wanted:
            self.backend.gather_rows(step.attended, indices, wanted.attended)
            self.backend.gather_rows(step.residual, indices, wanted.residual)
            layer.feed(wanted)
        outputs = wanted.normed if parts.feeds_normed else wanted.residual
        return outputs, self._compute_logits(wanted.normed, wanted.rows)

    def has_chain(self, num_rows: int) -> bool:
        """Return whether :meth:`chain` has what it returns for that many pairs."""
        return num_rows > MAX_CHAIN_ROWS or num_rows in self._chains

    def chain(self, num_rows: int, max_blocks: int, kv_cache: KVCache) -> DraftChain | None:
        """Return several steps of ``num_rows`` pairs as one call, where the backend has that.

        Without :meth:`has_chain` it is made first, and arrays that :meth:`forward` returned are
        overwritten.

        Args:
            num_rows: L.
            max_blocks: Most KV blocks of a row; the same at each call.
            kv_cache: The same at each call.
        """
        if not self.has_chain(num_rows):
            size, block_size = self.config.hidden_size, kv_cache.spec.block_size
            shape = ChainShape(num_rows, max_blocks, block_size, size)
            forward = partial(self.forward, kv_cache=kv_cache)
            # Where other ranks have a part of a table, it takes more than calls of this process.
            is_here = self._parts.embedding.packed and self._parts.output.packed
            made = self.backend.draft_chain(forward, shape) if is_here else None
            self._chains[num_rows] = made
        return self._chains.get(num_rows)

    def _compute_logits(self, normed: Array, rows: BatchRows) -> Array:
        num_rows = normed.shape[0]
        drafted = self._drafted[:num_rows]
        if num_rows:
            self._parts.output(normed, drafted, rows)
        if self._parts.draft_ids is None:
            return drafted
        logits = self._logits[:num_rows]
        return self.backend.spread_columns(drafted, self._draft_ids, logits)


def scratch_bytes(
    config: ModelConfig, max_tokens: int, max_rows: int, draft_size: int, dtype: str
) -> int:
    """Return the bytes that :meth:`RecurrentHead.reserve` takes, activations held as ``dtype``."""
    nbytes = workspace_bytes(config, max_tokens, dtype)
    nbytes += DTYPE_BYTES[dtype] * NUM_BUFFERS * max_tokens * config.hidden_size
    nbytes += 4 * max_rows * draft_size
    if draft_size != config.vocab_size:
        nbytes += 4 * max_rows * config.vocab_size
    return nbytes
