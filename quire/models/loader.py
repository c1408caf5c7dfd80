"""A checkpoint to a :class:`Decoder`: tensors are read once and packed for the backend."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quire.core.errors import ConfigError, WeightMismatchError
from quire.core.kv_cache_spec import DTYPE_BYTES
from quire.core.machine import read_machine
from quire.core.memory_budget import format_bytes
from quire.core.model_config import ModelConfig, MoEConfig
from quire.kernels.backend import Array, AttentionSpec, Backend, Linear, Weight
from quire.kernels.block_matrix import BlockMatrix
from quire.kernels.host_tensor import HostTensor
from quire.kernels.packed_weights import PackedWeights
from quire.kernels.quantized_tensor import QuantizedForm, QuantizedTensor
from quire.layers.decoder_layer import DecoderLayer
from quire.layers.mlp import MLP, FeedForward, GatedMLP
from quire.layers.moe import MixtureOfExperts
from quire.layers.norm import LayerNorm, Norm, RMSNorm
from quire.layers.rope import rope_table_bytes, rope_tables
from quire.models.config_reader import read_model_config
from quire.models.decoder import Decoder, DecoderParts
from quire.models.draft_heads.mtp_layouts import module_names
from quire.models.held_weights import HeldWeights, LinearKey
from quire.models.packed_weights_cache import PackedWeightsCache, open_packed_weights_cache
from quire.models.tensor_source import TensorSource, check_tensors, map_weights, open_tensors
from quire.models.weight_map import LinearWeights, NormWeights, WeightMap
from quire.quantization.formats.stored_matrix import UnpackedMatrix
from quire.quantization.plan import QuantizationPlan
from quire.quantization.round_to_nearest import Scheme, quantize

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def load_model(
    path: str | Path,
    backend: Backend,
    *,
    dtype: str = "auto",
    plan: QuantizationPlan | None = None,
    max_model_len: int | None = None,
    packed_weights_cache: str | None = None,
    on_progress: Progress | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Decoder:
    """Load a checkpoint.

    Args:
        path: A folder with ``config.json`` and safetensors, or a GGUF file.
        backend: Packs and computes.
        dtype: Type the weights are held in: ``float32``, ``float16``, ``bfloat16``, or ``auto`` for
            the checkpoint's.
        plan: What to quantize; None for nothing.
        max_model_len: Longest context served, in tokens; None for the model's.
        packed_weights_cache: Folder that keeps packed weights for later starts, or None.
        on_progress: Called with bytes done and bytes in all.
        meanwhile: Called once before weights are read, while those packed earlier are checked.

    Raises:
        ModelLoadError: The folder, its configuration or a file is missing or damaged.
        UnsupportedArchitectureError: The architecture or one of its options is not implemented.
        WeightMismatchError: A tensor is missing, surplus or of another shape.
        ConfigError: ``dtype``, ``plan`` or ``max_model_len`` does not fit the model, or the context
            does not fit in memory.
    """
    opened = open_checkpoint(Path(path), dtype, max_model_len)
    plan = plan or QuantizationPlan()
    plan.check_overrides(_modules(opened.weights))
    cache = opened.open_cache(packed_weights_cache, backend, plan.held)
    meanwhile()
    return opened.build(backend, plan, cache, on_progress, HeldWeights())


def load_rounded(
    path: str | Path,
    target: Decoder,
    plan: QuantizationPlan,
    *,
    packed_weights_cache: str | None = None,
    on_progress: Progress | None = None,
) -> Decoder:
    """Load the checkpoint of a decoder once more, rounded; weights that are equal are shared.

    Ids are looked up in the target's embedding whatever it is held in: a lookup reads a few rows,
    which no rounding makes quicker.

    Args:
        path: The target's checkpoint.
        target: Its type of floats and longest context are taken over.
        plan: What to quantize.
        packed_weights_cache, on_progress: As of :func:`load_model`.

    Returns:
        A decoder; ``weight_bytes`` are those of weights that are its own.

    Raises:
        ModelLoadError, ConfigError: As of :func:`load_model`.
    """
    opened = open_checkpoint(Path(path), target.config.dtype, target.max_model_len)
    # What is shared is not in the file: it is not that of the plan without a target.
    settings = f"{plan.held} next to {sorted(map(str, target.held.linears))}"
    cache = opened.open_cache(packed_weights_cache, target.backend, settings)
    return opened.build(target.backend, plan, cache, on_progress, target.held)


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint whose tensors are those of its model.

    Attributes:
        path: A folder or a GGUF file.
        config: Its dtype is the one that weights will be held in.
        keeps_types: Floats are held as they are stored, of several types.
        tensors, weights: What is there, and which goes where.
        max_model_len: Longest context served, in tokens.
    """

    path: Path
    config: ModelConfig
    keeps_types: bool
    tensors: TensorSource
    weights: WeightMap
    max_model_len: int

    def open_cache(
        self, folder: str | None, backend: Backend, settings: str
    ) -> PackedWeightsCache | None:
        return open_packed_weights_cache(folder, self.path, backend, f"{self.config} {settings}")

    def build(
        self,
        backend: Backend,
        plan: QuantizationPlan,
        cache: PackedWeightsCache | None,
        on_progress: Progress | None,
        shared: HeldWeights,
    ) -> Decoder:
        if cache is not None:
            cache.wait()
        builder = ModelBuilder(backend, self, plan, cache, on_progress, shared)
        with cache or nullcontext():
            parts = builder.decoder_parts(self.max_model_len)
            builder.report()
        return Decoder(self.config, backend, self.max_model_len, parts)


def open_checkpoint(path: Path, dtype: str, max_model_len: int | None) -> OpenedCheckpoint:
    """Read the configuration and check names and shapes; arguments are :func:`load_model`'s."""
    stored = read_model_config(path)
    config = _settle(stored, dtype, max_model_len)
    tensors = open_tensors(path, config)
    weights = map_weights(tensors, config)
    for line in tensors.notices():
        log.info("%s: %s", path, line)
    _check_tensors(tensors, weights)
    # Floats of several types are held as they are stored, unless a type was asked for.
    keeps_types = tensors.mixes_types and config.dtype == stored.dtype
    max_model_len = max_model_len or config.max_position_embeddings
    return OpenedCheckpoint(path, config, keeps_types, tensors, weights, max_model_len)


def _settle(config: ModelConfig, dtype: str, max_model_len: int | None) -> ModelConfig:
    """Return ``config`` with the type its weights will be held in."""
    dtype = config.dtype if dtype == "auto" else dtype
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"[load] --dtype must be one of {', '.join(DTYPE_BYTES)}; got {dtype}.")
    limit = config.max_position_embeddings
    if max_model_len is not None and not 1 <= max_model_len <= limit:
        raise ConfigError(
            f"[load] --max-model-len must be in 1..{limit}, the context of the checkpoint; "
            f"got {max_model_len}."
        )
    return replace(config, dtype=dtype)


def _modules(weights: WeightMap) -> set[str]:
    """Return the names of all matrices; an embedding that is also the head has both names."""
    shapes = weights.shapes()
    modules = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) > 1}
    return modules | {weights.names.head}


def _check_tensors(checkpoint: TensorSource, weights: WeightMap) -> None:
    names = weights.names
    head, embedding = f"{names.head}.weight", f"{names.embedding}.weight"
    tied = weights.config.tie_word_embeddings
    harmless = (*names.harmless, *((re.escape(head),) if tied else ()))
    modules = module_names(checkpoint.names, weights.config.num_layers)
    check_tensors(checkpoint, weights.shapes(), harmless, modules)
    if modules:
        log.info(
            "%s: %d tensors are a module that drafts further tokens, which the model itself does "
            'without; --speculative-config \'{"method": "mtp"}\' drafts by it',
            checkpoint.path,
            len(modules),
        )
    if not tied or head not in checkpoint.names or head == embedding:
        return
    ours, theirs = (checkpoint.tensor(name).float32() for name in (head, embedding))
    if not np.array_equal(ours, theirs):
        raise WeightMismatchError(
            f"[load] {head} must equal {embedding} where config.json has tie_word_embeddings; got "
            f"other values in {checkpoint.path}. Set tie_word_embeddings to false to use both."
        )
    checkpoint.release(head)
    checkpoint.release(embedding)
    log.info("%s: %s repeats the tied embedding and is not read again", checkpoint.path, head)


class ModelBuilder:
    """Takes tensors from the checkpoint, gives their pages back, and adds up what was made."""

    def __init__(
        self,
        backend: Backend,
        opened: OpenedCheckpoint,
        plan: QuantizationPlan,
        cache: PackedWeightsCache | None,
        on_progress: Progress | None,
        shared: HeldWeights,
    ) -> None:
        self.backend = backend
        self.checkpoint = opened.tensors
        self.weights = opened.weights
        self.weight_bytes = 0
        self.made = HeldWeights()
        self._shared = shared
        self._dtype = None if opened.keeps_types else opened.config.dtype
        self._plan = plan
        self._exact = plan.exact_activations
        self._cache = cache
        self._quantized: Counter[QuantizedForm] = Counter()
        self._kept: list[str] = []
        self._attention_plans: dict[AttentionSpec, int] = {}
        self._on_progress = on_progress
        self._done_bytes = 0
        names = self.weights.shapes()
        self._total_bytes = sum(self.checkpoint.entry(name).nbytes for name in names)

    def decoder_parts(self, max_model_len: int) -> DecoderParts:
        """Build everything; the largest tensors first, while little else is in memory."""
        weights, config = self.weights, self.weights.config
        tied = config.tie_word_embeddings
        tables = self._plan.tables
        shared = self._plan.scheme_of(weights.names.head, tables) if tied else tables
        embedding = self._shared.embedding or self.linear(weights.embedding(), shared)
        is_head = tied and self._shared.embedding is None
        head = embedding if is_head else self.linear(weights.head(), shared)
        positions = self.parameter(weights.positions()) if config.learned_positions else None
        rope = self.rope(config, max_model_len)
        first_norm = self.norm(weights.attention_norm(0))
        layers = [self.layer(config, layer, rope) for layer in range(config.num_layers)]
        self.made.embedding = embedding
        return DecoderParts(
            embedding, positions, first_norm, layers, head, self.made, self.weight_bytes
        )

    def linear(self, weights: LinearWeights, scheme: Scheme | None) -> Linear:
        """Pack matrices and biases into one linear, quantized if there is a scheme."""
        key = self._key(weights, scheme)
        held = self._shared.linears.get(key)
        if held is not None:
            self._finish(*(name for name, _ in weights.shapes()))
            return held
        biases = []
        if weights.bias:
            biases = [_floats(self.checkpoint.tensor(f"{m}.bias")) for m in weights.modules]
        matrices = self._matrices(weights, scheme)
        linear = self.backend.linear(
            matrices, biases, dtype=self._dtype, exact_activations=self._exact
        )
        self._made(linear.nbytes, [(weights, linear.packed)])
        self.made.linears[key] = linear
        self._finish(*(name for name, _ in weights.shapes()))
        return linear

    def _key(self, weights: LinearWeights, scheme: Scheme | None) -> LinearKey:
        forms = self._plan.forms(weights.modules, weights.columns, scheme)
        return weights.modules, forms, self._exact

    def _made(
        self, nbytes: int, packed: Iterable[tuple[LinearWeights, Sequence[PackedWeights]]]
    ) -> None:
        """Count what was packed and keep it for the next start."""
        self.weight_bytes += nbytes
        cache = None if self._cache is None or self._cache.is_complete else self._cache
        for weights, matrices in packed:
            self.made.packed += matrices
            if cache is not None:
                cache.add(weights.modules[0], matrices)

    def _matrices(self, weights: LinearWeights, scheme: Scheme | None) -> Sequence[Weight]:
        """Return the matrices of a linear, quantized if there is a scheme, packed if they were."""
        if self._cache is not None and self._cache.is_complete:
            packed = self._cache.find(weights.modules[0])
            for stack in packed:
                for name in stack.names:
                    self._count(name, stack.form)
            return packed
        matrices = [self.checkpoint.tensor(f"{module}.weight") for module in weights.modules]
        if weights.transposed:
            matrices = [_transpose(matrix) for matrix in matrices]
        return [
            self._quantize(matrix, self._plan.scheme_of(module, scheme))
            for module, matrix in zip(weights.modules, matrices, strict=True)
        ]

    def _count(self, name: str, form: QuantizedForm | None) -> None:
        if form is None:
            self._kept.append(name)
        else:
            self._quantized[form.kind] += 1

    def report(self) -> None:
        """Say what is quantized, and how, and what is not.

        Raises:
            ConfigError: Exact activations were asked for and nothing is quantized.
        """
        if not self._quantized:
            if self._plan.exact_activations:
                raise ConfigError(
                    "[load] --activations fp32 needs quantized weights; got none. Add "
                    "--quantization, or leave it out."
                )
            return
        kept = ", ".join(sorted({re.sub(r"\.\d+\.", ".*.", name) for name in self._kept}))
        log.info(
            "%d matrices are quantized; kept in higher precision: %s",
            self._quantized.total(),
            kept,
        )
        # Stored scales of inputs make forms of matrices differ that read the same.
        kinds: Counter[str] = Counter()
        for form, count in self._quantized.items():
            kinds[str(form)] += count
        for kind, count in kinds.most_common():
            log.info("%d matrices are held in %s", count, kind)
        fewest = min(form.bits for form in self._quantized)
        if self._plan.layers is not None and fewest < 4:
            log.warning(
                "weights of %d bits lose much of a model's quality: docs/models.md has figures",
                fewest,
            )

    def _quantize(
        self, matrix: HostTensor | BlockMatrix | UnpackedMatrix, scheme: Scheme | None
    ) -> Weight:
        if not isinstance(matrix, HostTensor) and scheme is not None:
            raise ConfigError(
                f"[load] --quantization needs a checkpoint of floats; {matrix.name} has "
                f"{matrix.form.bits} bits already. Leave the flag out."
            )
        made: Weight = matrix
        if isinstance(matrix, HostTensor) and scheme is not None:
            made = quantize(matrix, scheme, self.backend.threads)
        if isinstance(matrix, QuantizedTensor) and self._plan.own_activations:
            made = replace(matrix, activations=None)
        self._count(made.name, None if isinstance(made, HostTensor) else made.form)
        return made

    def parameter(self, name: str) -> Array:
        """Copy a small weight to the backend."""
        if name in self._shared.parameters:
            self._finish(name)
            return self._shared.parameters[name]
        # A copy of our own, so that float32 weights do not go on living in the mapped file.
        tensor = _floats(self.checkpoint.tensor(name))
        array = self.backend.parameter(replace(tensor, array=tensor.array.copy()))
        self.weight_bytes += array.nbytes
        self.made.parameters[name] = array
        self._kept.append(name)
        self._finish(name)
        return array

    def norm(self, weights: NormWeights) -> Norm:
        """Make a norm with its weights."""
        eps = self.weights.config.norm_eps
        weight, *bias = (self.parameter(name) for name, _ in weights.shapes())
        if bias:
            return LayerNorm(self.backend, weight, bias[0], eps)
        return RMSNorm(self.backend, weight, eps)

    def layer(
        self, config: ModelConfig, layer: int, rope: tuple[Array, Array] | None
    ) -> DecoderLayer:
        """Build one layer, and the norm that comes after it."""
        weights, last = self.weights, layer + 1 == config.num_layers
        qk_norm = None
        if config.qk_norm:
            q_norm, k_norm = weights.qk_norm(layer)
            qk_norm = (
                self.parameter(f"{q_norm.module}.weight"),
                self.parameter(f"{k_norm.module}.weight"),
            )
        windowed = not config.layer_windows or config.layer_windows[layer]
        spec = AttentionSpec(
            layer=layer,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            sliding_window=config.sliding_window if windowed else None,
            rope_sections=config.rope.sections if config.rope else (),
        )
        # Layers whose attention differs in nothing but the layer share a plan.
        plan = self._attention_plans.setdefault(replace(spec, layer=0), len(self._attention_plans))
        return DecoderLayer(
            qkv=self.linear(weights.qkv(layer), self._plan.layers),
            attention=self.backend.attention(
                spec, rope=rope, qk_norm=qk_norm, norm_eps=config.norm_eps
            ),
            output=self.linear(weights.attention_output(layer), self._plan.layers),
            mlp_norm=self.norm(weights.mlp_norm(layer)),
            feed_forward=self._feed_forward(config, layer),
            next_norm=self.norm(
                weights.final_norm() if last else weights.attention_norm(layer + 1)
            ),
            plan=plan,
        )

    def _feed_forward(self, config: ModelConfig, layer: int) -> FeedForward:
        weights = self.weights
        if config.moe:
            return self._experts(config.moe, config.activation, layer)
        scheme = self._plan.layers
        up = self.linear(weights.gate_up(layer), scheme)
        down = self.linear(weights.down(layer), scheme)
        make = GatedMLP if config.gated_mlp else MLP
        return make(self.backend, up, down, config.activation)

    def _experts(self, config: MoEConfig, activation: str, layer: int) -> MixtureOfExperts:
        numbers = range(config.num_experts)
        gate_up = [self.weights.gate_up(layer, expert) for expert in numbers]
        down = [self.weights.down(layer, expert) for expert in numbers]
        experts = self.backend.experts(
            self._matrices_in_turn(gate_up),
            self._matrices_in_turn(down),
            activation,
            dtype=self._dtype,
            exact_activations=self._exact,
        )
        self._made(experts.nbytes, zip((*gate_up, *down), experts.packed, strict=False))
        router = self.linear(self.weights.router(layer), None)
        return MixtureOfExperts(self.backend, config, router, experts)

    def _matrices_in_turn(self, linears: Iterable[LinearWeights]) -> Iterator[Sequence[Weight]]:
        """Yield the matrices of each linear; when the next is asked for, the last is packed."""
        for weights in linears:
            yield self._matrices(weights, self._plan.layers)
            self._finish(*(name for name, _ in weights.shapes()))

    def rope(self, config: ModelConfig, max_model_len: int) -> tuple[Array, Array] | None:
        """Make the tables of a context; None without rotary positions."""
        if config.rope is None or self._shared.rope is not None:
            return self._shared.rope
        nbytes = rope_table_bytes(config.rope, max_model_len)
        free = read_machine().free_bytes
        if nbytes > free:
            raise ConfigError(
                f"[load] the RoPE tables of a context of {max_model_len} tokens must fit in "
                f"{format_bytes(free)} of free memory; they take {format_bytes(nbytes)}. Give a "
                "smaller --max-model-len."
            )
        cos, sin = rope_tables(config.rope, max_model_len)
        self.weight_bytes += cos.nbytes + sin.nbytes
        self.made.rope = self.backend.from_numpy(cos), self.backend.from_numpy(sin)
        return self.made.rope

    def _finish(self, *names: str) -> None:
        for name in names:
            self.checkpoint.release(name)
            self._done_bytes += self.checkpoint.entry(name).nbytes
        if self._on_progress is not None:
            self._on_progress(self._done_bytes, self._total_bytes)


def _floats(tensor: HostTensor | BlockMatrix | UnpackedMatrix) -> HostTensor:
    """Return the values of a small weight, made of floats if they are quantized."""
    if isinstance(tensor, HostTensor):
        return tensor
    return HostTensor(tensor.name, "float32", tensor.float32())


def _transpose(matrix: HostTensor | BlockMatrix | UnpackedMatrix) -> HostTensor:
    tensor = _floats(matrix)
    return replace(tensor, array=np.ascontiguousarray(tensor.array.T))
