"""The ops and op objects that a device must offer; layers are built from them.

This module owns the protocol; ``registry.py`` chooses an implementation. Each op's exact
definition is in ``kernels/<op>.py``, its meaning in ``kernels/reference``.

T tokens, B requests, N query heads, K KV heads, H head dim, D model dim, V vocabulary.
Activations are of the backend's ``activation_dtype``, logits float32, indices int32, slots int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.moe_config import ExpertRouting
from quire.kernels.attention_protocol import Attention as Attention
from quire.kernels.attention_protocol import AttentionPlan as AttentionPlan
from quire.kernels.attention_protocol import AttentionSpec as AttentionSpec
from quire.kernels.attention_protocol import KVCache as KVCache
from quire.kernels.attention_protocol import LatentAttention, LatentSpec, LatentWeights
from quire.kernels.attention_protocol import QKNorm as QKNorm
from quire.kernels.batch.forward_batch import Array as Array
from quire.kernels.batch.forward_batch import BatchRows, ForwardBatch
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.low_rank import LowRank, LowRankPart
from quire.kernels.matrices.block_matrix import BlockMatrix
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.packed_weights import PackedWeights

#: A matrix (out, in) to be packed, or that a CPU backend packed before.
Weight = HostTensor | QuantizedTensor | BlockMatrix | LatticeMatrix | PackedWeights


#: A dataclass of arrays, such as :class:`ForwardBatch`.
Arrays = TypeVar("Arrays")


class Linear(Protocol):
    """``y = x @ weight.T + bias`` with weights packed once.

    Any linear of a model may be wrapped by another object of this protocol. It is told which rows
    of which step it is given, so that what it adds may depend on the request a row belongs to.
    """

    in_features: int
    out_features: int
    nbytes: int
    #: What was packed; empty where weights are kept as they are.
    packed: Sequence[PackedWeights]

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (T, in_features) to (T, out_features).

        Each row's result depends on that row alone, bit for bit, whatever T and the threads; a
        plain linear does not look at ``rows``.

        Args:
            x: (T, in_features).
            out: (T, out_features), written and returned; allocated when None.
            rows: The rows of the step that the rows of ``x`` are; None outside of a step.
        """
        ...

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return weight rows ``ids`` (T,) as (T, in_features): an embedding."""
        ...


#: A head's step: its outputs (L, D) and logits (L, V) from a batch of L rows and features (L, D).
Forward = Callable[[ForwardBatch, Array], tuple[Array, Array]]


@dataclass(frozen=True, slots=True)
class ChainShape:
    """Sizes of a :class:`DraftChain`.

    Attributes:
        num_rows: L.
        max_blocks: Most KV blocks of a row.
        block_size: Tokens per block.
        size: D.
    """

    num_rows: int
    max_blocks: int
    block_size: int
    size: int


@dataclass(frozen=True, slots=True)
class ChainStart:
    """The beginning of a :class:`DraftChain`, on the host: one position of each row.

    Attributes:
        input_ids: (L,) int32.
        positions: (L,) int32.
        seq_lens: (L,) int32, positions that each attends to, its own one included.
        block_tables: (L, N) int32, of these and of all steps to come.
        features: (L, D).
    """

    input_ids: Array
    positions: Array
    seq_lens: Array
    block_tables: Array
    features: Array


class DraftChain(Protocol):
    """A head's steps of one position, each with the token drawn from the step before.

    Attributes:
        outputs: (L, D) of the last step.
    """

    outputs: Array

    def run(self, start: ChainStart, sampling: SamplingBatch, steps: int) -> npt.NDArray[np.int32]:
        """Take up to ``steps`` steps.

        Args:
            start: Inputs of the first step.
            sampling: Settings that the first token is drawn with, without penalties, bias, or
                masks.
            steps: Number of steps, at most; at least 1.

        Returns:
            (n, L) int32 tokens; less than ``steps`` where a row got none, as -1 in the last.
        """
        ...


class Backend(Protocol):
    """One per device, made once at load. See ``kernels/<op>.py`` for each op's definition."""

    name: str
    #: Of the activations between ops: ``float32``, ``float16`` or ``bfloat16``.
    activation_dtype: str
    #: Threads that work on the host, such as rounding at load, may use.
    threads: int
    #: Changes with the bytes of packed weights, which files may keep; None where none are packed.
    packed_weights_version: int | None

    def kernel_names(self) -> dict[str, str]:
        """Return kind of weights to the instructions that multiply it; empty without a choice."""
        ...

    # -- memory ------------------------------------------------------------------------------
    def empty(self, shape: Sequence[int], dtype: str = "float32") -> Array:
        """Allocate an uninitialised array; not for the hot path."""
        ...

    def from_numpy(self, array: Any) -> Array:
        """Return ``array`` on this device (the same object on cpu)."""
        ...

    def upload(self, arrays: Arrays) -> Arrays:
        """Return a step's arrays, a dataclass of numpy arrays, on this device, all in one go.

        On cpu it is the same object; fields that are no arrays stay what they are.
        """
        ...

    def to_numpy(self, array: Array) -> Any:
        """Return ``array`` as numpy (the same object on cpu)."""
        ...

    def checksums(self, data: Any, parts: Sequence[tuple[int, int]]) -> list[int]:
        """Return 64 bits that tell the bytes of each part (begin, bytes) of a buffer.

        Other Python threads go on meanwhile.
        """
        ...

    def parameter(self, tensor: HostTensor) -> Array:
        """Return a small weight (norms, biases, tables) as float32 on this device."""
        ...

    def kv_cache(self, spec: KVCacheSpec, num_blocks: int) -> KVCache: ...

    # -- op objects --------------------------------------------------------------------------
    def linear(
        self,
        weights: Sequence[Weight],
        biases: Sequence[HostTensor] = (),
        *,
        dtype: str | None,
        exact_activations: bool = False,
    ) -> Linear:
        """Pack (out_i, in) matrices, stacked along the outputs.

        Args:
            weights: The matrices; floats are held as ``dtype``, quantized ones as they are.
            biases: (out_i,), kept in float32.
            dtype: ``float32``, ``float16`` or ``bfloat16``; None for the type they are stored in
                (float32 where that is not one).
            exact_activations: Whether activations are left unrounded where weights are quantized.
        """
        ...

    def low_rank(
        self, parts: Sequence[LowRankPart], in_features: int, out_features: int
    ) -> LowRank:
        """Hold what an adapter adds to a linear, in ``nbytes``; see ``kernels/low_rank.py``."""
        ...

    def attention(
        self,
        spec: AttentionSpec,
        *,
        rope: tuple[Array, Array] | None = None,
        qk_norm: QKNorm | None = None,
        sinks: Array | None = None,
        query_scales: Array | None = None,
    ) -> Attention:
        """Make one layer's attention.

        Args:
            spec: Shapes, and what a query sees.
            rope: Cosines and sines, each (max positions, rotary_dim / 2) float32, or None.
                Element ``i`` of a head rotates with element ``i + rotary_dim / 2`` (NeoX style).
            qk_norm: Norm of queries and keys, applied before RoPE.
            sinks: (N,) float32: for each query head one score more in its softmax's total, which
                has no value; or None.
            query_scales: (max positions,) float32, by which queries are multiplied after RoPE, by
                their position; or None.
        """
        ...

    def latent_attention(
        self, spec: LatentSpec, weights: LatentWeights, rope: tuple[Array, Array]
    ) -> LatentAttention:
        """Make one layer's latent attention; see ``kernels/latent_attention.py``.

        Args:
            spec: Shapes.
            weights: The weights that make keys and values of latents.
            rope: The same as for :meth:`attention`, of R elements.
        """
        ...

    # -- plain ops ---------------------------------------------------------------------------
    def add_low_rank(
        self,
        groups: Sequence[tuple[LowRank, int, int]],
        rows: npt.NDArray[np.int32],
        x: Array,
        out: Array,
    ) -> Array:
        """Add what each adapter makes of its rows, ``rows[begin:end]``, of ``x`` to ``out``."""
        ...

    def adjust_rows(
        self, x: Array, rows: npt.NDArray[np.int32], factors: Array, shifts: Array
    ) -> Array:
        """``x[rows[i]] = x[rows[i]] * factors + shifts``, rounded twice; each row is there once."""
        ...

    def rms_norm(
        self, x: Array, weight: Array, eps: float, out: Array, residual: Array | None = None
    ) -> Array:
        """Write the norm of ``x`` to ``out``; with ``residual``, that of ``residual += x``."""
        ...

    def layer_norm(
        self,
        x: Array,
        weight: Array,
        bias: Array,
        eps: float,
        out: Array,
        residual: Array | None = None,
    ) -> Array:
        """Write the norm of ``x`` to ``out``; with ``residual``, that of ``residual += x``."""
        ...

    def scale(self, x: Array, factor: float, out: Array) -> Array:
        """``out = factor * x``; ``out`` may be ``x``."""
        ...

    def soft_cap(self, x: Array, cap: float, out: Array) -> Array:
        """``out = cap * tanh(x / cap)``; ``out`` may be ``x``."""
        ...

    def add_residual(self, x: Array, residual: Array, out: Array | None = None) -> Array:
        """``residual += x``, returned; ``out`` gets a copy and may be ``x``."""
        ...

    def gated_activation(self, x: Array, activation: str, out: Array) -> Array:
        """``out = act(x[:, :M]) * x[:, M:]`` for x (T, 2 M); see ``kernels/activation.py``."""
        ...

    def activation(self, x: Array, activation: str, out: Array) -> Array:
        """``out = act(x)`` elementwise; ``out`` may be ``x``."""
        ...

    def add_rows(self, x: Array, table: Array, rows: Array) -> Array:
        """``x[t] += table[rows[t]]`` in place: learned positions."""
        ...

    def gather_rows(self, x: Array, rows: Array, out: Array) -> Array:
        """``out[i] = x[rows[i]]``."""
        ...

    def scatter_rows(self, x: Array, rows: Array, out: Array) -> Array:
        """``out[rows[i]] = x[i]``; the other rows stay."""
        ...

    def spread_columns(self, x: Array, columns: Array, out: Array) -> Array:
        """``out[:, columns[i]] = x[:, i]``; -inf elsewhere."""
        ...

    def draft_chain(self, forward: Forward, shape: ChainShape) -> DraftChain | None:
        """Prepare several steps of a head as one call; None where this backend cannot."""
        ...

    def route(
        self, logits: Array, routing: ExpertRouting, bias: Array | None = None
    ) -> tuple[Array, Array]:
        """Choose experts by logits (T, E): ids (T, k) int32 and weights (T, k) float32.

        Equal scores go to the lower expert. Best first. ``bias`` (E,) only chooses.
        """
        ...

    def combine_experts(self, y: Array, places: Array, weights: Array, out: Array) -> Array:
        """``out[t] = sum_j weights[t, j] * y[places[t, j]]``, summed in the order of j.

        For y (T k, D), places (T, k) int32, weights (T, k) and out (T, D).
        """
        ...

    def add_gated_rows(self, x: Array, gate: Array, out: Array) -> Array:
        """``out[t] += x[t] * sigmoid(gate[t])`` for x and out (T, D), gate (T, 1)."""
        ...

    def scale_rows(self, x: Array, scales: Array, out: Array) -> Array:
        """``out[t] = x[t] * scales[t]`` for x and out (T, D), scales (T, 1); out may be x."""
        ...

    def experts(
        self,
        gate_up: Iterable[Sequence[Weight]],
        down: Iterable[Sequence[Weight]],
        activation: str,
        *,
        dtype: str | None,
        exact_activations: bool = False,
        biases: Iterable[Sequence[HostTensor]] = (),
    ) -> Experts:
        """Pack one layer's mixture of experts.

        Args:
            gate_up: Matrices of each expert that stack to (2 M, D); each expert's are packed before
                the next one's are asked for.
            down: The same, (D, M).
            activation: A name of ``kernels/activation.py``.
            dtype, exact_activations: The same as for :meth:`linear`.
            biases: Biases of each expert's gate and up, then of each expert's down; empty for none.
        """
        ...

    def grouped_linear(
        self,
        weights: Iterable[Sequence[Weight]],
        *,
        dtype: str | None,
        exact_activations: bool = False,
        biases: Iterable[Sequence[HostTensor]] = (),
    ) -> GroupedLinear:
        """Pack one product of each expert; arguments are those of :meth:`experts`."""
        ...

    # -- sampling ----------------------------------------------------------------------------
    def sample(self, logits: Array, batch: SamplingBatch) -> Array:
        """Choose a token for each row of (B, V); (B,) int32. May overwrite ``logits``.

        -1 where no token can be chosen: NaN or +inf among the logits, or every token forbidden.
        """
        ...

    def sampling_probabilities(self, logits: Array, batch: SamplingBatch) -> Array:
        """Return what ``sample`` draws from, (B, V) float32. May overwrite ``logits``.

        A greedy row has 1 at its token; one where no token can be chosen is 0 everywhere.
        """
        ...

    def token_logprobs(
        self, logits: Array, token_ids: Array, num_top: int
    ) -> tuple[Array, Array, Array, Array]:
        """Log-softmax figures of raw logits (B, V).

        Returns:
            logprob (B,) float32 and 1-based rank (B,) int32 of ``token_ids`` (B,) int32, and the
            ``num_top`` best ids (B, num_top) int32 with their logprobs, best first, ties by id.
        """
        ...


#: Changes outputs (R, out) of experts' matrices, given the inputs (R, in) of R = T k routed rows,
#: too, and places (T, k) int32 on the host: which row of either is (t, j).
ProductChange = Callable[[Array, Array, npt.NDArray[np.int32]], None]


class GroupedLinear(Protocol):
    """One product of each of some experts, for rows that are sorted by expert.

    Attributes:
        in_features, out_features: Inputs and outputs of each product.
        nbytes: Memory of the packed weights.
        packed: Packed weights, by expert.
    """

    in_features: int
    out_features: int
    nbytes: int
    packed: Sequence[Sequence[PackedWeights]]

    def __call__(self, x: Array, starts: Sequence[int], out: Array) -> Array:
        """Multiply (R, in_features) to (R, out_features); a row depends on that row alone.

        Args:
            x: Routed rows, sorted by expert.
            starts: Index of each expert's first row, and R.
            out: (R, out_features), written and returned.
        """
        ...


class MixedExperts(Protocol):
    """Expert MLPs of one layer, as the layer calls them.

    Attributes:
        nbytes: Memory of the packed weights.
        packed: Packed weights of each expert's gate and up, then of each expert's down.
    """

    nbytes: int

    @property
    def packed(self) -> Sequence[Sequence[PackedWeights]]: ...

    def __call__(
        self, x: Array, ids: Array, weights: Array, out: Array, rows: BatchRows | None = None
    ) -> Array:
        """``out[t] = sum_j weights[t, j] * mlp[ids[t, j]](x[t])``, summed in the order of j.

        As of :class:`Linear`, ``rows`` are what those of ``x`` are in the step.
        """
        ...


class Experts(MixedExperts, Protocol):
    """The same as a backend makes them."""

    def changed(
        self,
        x: Array,
        ids: Array,
        weights: Array,
        out: Array,
        change_up: ProductChange,
        change_down: ProductChange,
    ) -> Array:
        """Do the same, with changes of both products before they are used.

        Rows that are not changed have the bits that they have without.
        """
        ...
