"""Bytes that weights will take, known before any is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from quire.checkpoints.gguf.gguf_checkpoint import FLOATS, GgufCheckpoint
from quire.checkpoints.gguf.gguf_types import FORMS
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.checkpoints.quantized.quantized_checkpoint import MatrixEntry, QuantizedCheckpoint
from quire.checkpoints.rank_files import RankEntry, RankFolder
from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.core.model.model_config import ModelConfig
from quire.kernels.matrices.quantized_tensor import QuantizedForm, stacked_form
from quire.kernels.packed_weights import float_bytes
from quire.layers.rope import rope_table_bytes
from quire.models.family_tensors import family_names, map_weights, open_tensors, stored_names
from quire.models.shards.rank_weights import RankPart
from quire.models.weight_map import LinearWeights, WeightMap
from quire.quantization.quantization_plan import QuantizationPlan, refuse_quantized
from quire.quantization.rounding_schemes import RoundingScheme

#: Names of matrices that are one linear.
Modules = tuple[str, ...]
#: Checkpoints that say how their matrices are held.
Stored = GgufCheckpoint | QuantizedCheckpoint | RankFolder


def expected_weight_bytes(
    path: Path,
    config: ModelConfig,
    dtype: str,
    plan: QuantizationPlan,
    max_model_len: int,
    target_plan: QuantizationPlan | None = None,
    part: RankPart | None = None,
    layers: range | None = None,
) -> int:
    """Return the bytes that weights and tables of positions will take.

    Weights whose scales do not fit in float16 take more; only reading them tells.

    Args:
        path: The checkpoint, a folder or a GGUF file.
        config: Configuration read from the checkpoint.
        dtype: Type its floats will be held in.
        plan: The plan of what is quantized at load.
        max_model_len: Positions of the tables.
        target_plan: Plan by which the checkpoint is in memory already, None where it is not; equal
            weights are shared then (:func:`~quire.models.loader.load_rounded`).
        part: The one of several ranks that they are for; None for one alone.
        layers: Layers of the stage that they are for; None for the whole model.
    """
    stored = _quantized(path, config)
    names = stored_names(stored, config) if stored else family_names(config)
    weights = WeightMap(config, names, layers)
    if part is not None:
        tensors = stored or open_tensors(path, config)
        whole = map_weights(tensors, config)
        weights = part.weights(tensors, WeightMap(config, whole.names, layers), plan)
        config = weights.config
    # As the loader does: a GGUF file's floats are held as they are stored.
    mixes_types = stored is not None and stored.mixes_types
    sizes = _Sizes(stored, plan, None if mixes_types and dtype == config.dtype else dtype)
    linears = {part.modules: part for part in weights.parts() if isinstance(part, LinearWeights)}
    matrices = {name for part in linears.values() for name, _ in part.shapes()}
    shapes = weights.shapes().items()
    # Norms and learned positions are held in float32; a linear's own count below.
    others = sum(4 * math.prod(shape) for name, shape in shapes if name not in matrices)
    others += sum(rope_table_bytes(rope, max_model_len) for rope in config.ropes)
    if any(config.layer_query_scaling(layer) for layer in weights.layers):
        others += 4 * max_model_len
    schemes = _schemes(weights, plan)
    # Made anew by each decoder, a matrix for each head's keys and one for its values.
    latents = 0
    for layer in weights.layers if config.latent else ():
        heads = linears.pop(weights.latent_heads(layer).modules)
        latents += _latent_bytes(config, sizes.floats(heads))
    if target_plan is not None:
        others = 0
        for modules in _shared(weights, plan, target_plan):
            linears.pop(modules, None)
    return (
        others
        + latents
        + sum(
            sizes.linear(part, schemes.get(modules, plan.layers))
            for modules, part in linears.items()
        )
    )


def _latent_bytes(config: ModelConfig, dtype: str) -> int:
    """Return what the products with latents take in a layer, packed head by head."""
    latent, size = config.latent, DTYPE_BYTES[dtype]
    assert latent is not None
    keys = float_bytes(latent.rank, latent.key_dim, size)
    return config.num_heads * (keys + float_bytes(latent.value_dim, latent.rank, size))


def _quantized(path: Path, config: ModelConfig) -> Stored | None:
    """Return a checkpoint that may have quantized matrices; None for one of floats."""
    if not path.is_file() and read_quantization(path) is None:
        return None
    source = open_tensors(path, config)
    return source if isinstance(source, Stored) else None


def _schemes(weights: WeightMap, plan: QuantizationPlan) -> dict[Modules, RoundingScheme | None]:
    """Return how linears are rounded that are not as those of the layers."""
    config = weights.config
    schemes = {weights.embedding().modules: plan.tables, weights.head().modules: plan.tables}
    if config.tie_word_embeddings:
        shared = plan.scheme_of(weights.names.head, plan.tables)
        schemes[weights.embedding().modules] = shared
    for layer in weights.layers:
        schemes |= {linear.modules: None for linear in weights.unrounded(layer)}
    return schemes | {linear.modules: None for linear in weights.state_heads()}


def _shared(
    weights: WeightMap, plan: QuantizationPlan, target_plan: QuantizationPlan
) -> set[Modules]:
    """Return the linears that are taken from those in memory: the embedding, and equal ones."""
    shared = set() if weights.config.tie_word_embeddings else {weights.embedding().modules}
    if (plan.exact_activations, plan.fine_activations) != (
        target_plan.exact_activations,
        target_plan.fine_activations,
    ):
        return shared
    own, others = _schemes(weights, plan), _schemes(weights, target_plan)
    layers = weights.layers
    experts = {
        linear.modules for layer in layers for mlp in weights.experts(layer) for linear in mlp
    }
    for part in weights.parts():
        if isinstance(part, LinearWeights) and part.modules not in experts:
            modules, columns = part.modules, part.columns
            forms = plan.forms(modules, columns, own.get(modules, plan.layers))
            if forms == target_plan.forms(
                modules, columns, others.get(modules, target_plan.layers)
            ):
                shared.add(modules)
    return shared


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of linears.

    Attributes:
        stored: Source of each matrix's stored form; None where all are floats.
        plan: The plan of what is quantized at load.
        dtype: Type that floats are held in, None for the one they are stored in.
    """

    stored: Stored | None
    plan: QuantizationPlan
    dtype: str | None

    def linear(self, weights: LinearWeights, scheme: RoundingScheme | None) -> int:
        """Return the bytes of a linear: neighbours that are held alike are packed as one.

        Matrices that are rotated are each packed alone.
        """
        forms = [
            self._form(module, rows, weights.columns, scheme)
            for module, rows in zip(weights.modules, weights.rows, strict=True)
        ]
        stored = {form for form in forms if isinstance(form, str)}
        dtype = self.dtype or (stored.pop() if len(stored) == 1 else "float32")
        total = 4 * sum(weights.rows) if weights.bias else 0
        held = [None if isinstance(form, str) else form for form in forms]
        matrices = zip(range(len(held)), held, weights.rows, strict=True)
        for _, group in groupby(matrices, key=_kind):
            run = list(group)
            rows = sum(number for _, _, number in run)
            alike = [form for _, form, _ in run if form is not None]
            if not alike:
                total += float_bytes(rows, weights.columns, DTYPE_BYTES[dtype])
            else:
                total += stacked_form(alike).matrix_bytes(rows, weights.columns)
        return total

    def floats(self, weights: LinearWeights) -> str:
        """Return the type that one matrix is held in, made of floats if it is quantized."""
        form = self._form(weights.modules[0], weights.rows[0], weights.columns, None)
        return self.dtype or (form if isinstance(form, str) else "float32")

    def _form(
        self, module: str, rows: int, columns: int, scheme: RoundingScheme | None
    ) -> QuantizedForm | str:
        """Return how a matrix is quantized, or the type that its floats are stored in."""
        dtype, name = self.dtype or "float32", f"{module}.weight"
        scheme = self.plan.scheme_of(module, scheme)
        if isinstance(self.stored, QuantizedCheckpoint | RankFolder) and name in self.stored.names:
            entry = self.stored.entry(name)
            if isinstance(entry, MatrixEntry | RankEntry) and entry.form is not None:
                refuse_quantized(name, entry.form, scheme)
                return _form_of_rows(entry.form, entry.shape, rows)
        if isinstance(self.stored, GgufCheckpoint) and name in self.stored.names:
            layout = self.stored.entry(name).layout.name
            if layout in FORMS:
                refuse_quantized(name, FORMS[layout], scheme)
                return FORMS[layout]
            dtype = FLOATS[layout]
        return dtype if scheme is None else scheme.form(columns)


def _form_of_rows(form: QuantizedForm, shape: tuple[int, ...], rows: int) -> QuantizedForm:
    """Return how some rows of a matrix are held."""
    count, columns = shape
    if form.num_outliers is not None:  # about as many in each
        form = replace(form, num_outliers=form.num_outliers * rows // count)
    groups = -(-columns // form.group_size)
    if form.nested is not None and rows < count and rows * groups % form.nested.run:
        form = replace(form, nested=None, scale_type="float32")
    return form


def _kind(
    matrix: tuple[int, QuantizedForm | None, int],
) -> tuple[QuantizedForm | None, int | None]:
    """Return what is the same of neighbours that are packed as one: number, form, rows."""
    number, form, _ = matrix
    if form is None:
        return None, None
    return form.kind, number if form.rotation is not None else None
