"""Rounding of the inputs of quantized matrices, as a configuration asks for it."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.formats.compressed_tensors import (
    MX_GROUP,
    NV_GROUP,
    FourBitFloats,
    WholeBytes,
)
from quire.checkpoints.formats.rounded_inputs import RoundedInputs
from quire.checkpoints.formats.stored_matrix import WeightFormat
from quire.kernels.backend import Weight
from quire.kernels.matrices.activation_scheme import FINE, ActivationScheme
from quire.kernels.matrices.block_matrix import BlockMatrix
from quire.kernels.matrices.quantized_tensor import QuantizedTensor

#: What becomes of inputs that are not rounded as a checkpoint asks.
OWN = "they stay in the engine's own precision"
#: Of integers with inputs of E4M3.
SLOW = (
    "integers are multiplied with inputs in E4M3 as floats; --activations int8 rounds them in the "
    "engine's own groups and is several times as fast"
)
#: Inputs of a group of E4M3 are a multiple of this.
GROUP_MULTIPLE = 32


def with_rounded_inputs(
    inputs: ConfigFields, weights: WeightFormat, group: str
) -> tuple[WeightFormat, str]:
    """Return a format with inputs rounded as ``input_activations`` of compressed-tensors say.

    Args:
        inputs: ``input_activations``.
        weights: Format that the matrices are stored in.
        group: Name of the group of settings, for the notice.

    Returns:
        The format, and a notice of what is done in another way, empty for nothing.

    Raises:
        ModelLoadError: A field is missing or of another type.
    """
    asked = f"{inputs.integer('num_bits')}-bit {inputs.text('type', 'int')}"
    symmetric = inputs.boolean("symmetric", True)
    is_dynamic = inputs.values.get("dynamic", False)
    strategy = inputs.text("strategy", "tensor")
    group_size = inputs.values.get("group_size")
    own = f"activations are not rounded to {asked} as {group} asks: {OWN}"
    small = _of_small_groups(weights)
    if small is not None:
        found = (asked, strategy, is_dynamic, group_size)
        return (small[1], "") if found == small[0] and symmetric else (weights, own)
    codes = _CODES.get(asked, "")
    are_floats = isinstance(weights, WholeBytes) and weights.dtype != "I8"
    if not codes or (are_floats and codes == "int8") or not (symmetric or codes == "int8"):
        return weights, own
    slow = "" if are_floats or codes == "int8" else SLOW
    if strategy == "group" and codes == "e4m3" and is_dynamic is True:
        size = inputs.integer("group_size")
        if size % GROUP_MULTIPLE:
            return weights, own
        return RoundedInputs(weights, ActivationScheme(codes, size)), slow
    if strategy != "tensor" and (strategy != "token" or is_dynamic is not True):
        return weights, f"activations are not rounded by {strategy} as {group} asks: {OWN}"
    scheme = ActivationScheme(codes, has_zeros=not symmetric)
    if is_dynamic is not True:
        return RoundedInputs(weights, scheme, "input_scale"), slow
    # One scale for all rows of a batch would make a request depend on the others.
    told = f"activations have a scale for each token where {group} asks for one of a batch"
    return RoundedInputs(weights, scheme), told if strategy == "tensor" else slow


#: By what compressed-tensors calls them.
_CODES = {"8-bit int": "int8", "8-bit float": "e4m3"}
#: How inputs of NVFP4 and of microscaling formats are asked for.
_Asked = tuple[str, str, object, object]


def _of_small_groups(weights: WeightFormat) -> tuple[_Asked, WeightFormat] | None:
    """Return what may be asked of inputs of a format of small groups, and the format with it."""
    if isinstance(weights, FourBitFloats):
        if weights.group_size == NV_GROUP:
            scheme = ActivationScheme("e2m1", NV_GROUP)
            made = RoundedInputs(weights, scheme, "input_global_scale")
            return ("4-bit float", "tensor_group", "local", NV_GROUP), made
        scheme = ActivationScheme("e2m1", MX_GROUP, has_power_factors=True)
        return ("4-bit float", "group", True, MX_GROUP), RoundedInputs(weights, scheme)
    if isinstance(weights, WholeBytes) and weights.scale_type == "e8m0":
        scheme = ActivationScheme("e4m3", MX_GROUP, has_power_factors=True)
        return ("8-bit float", "group", True, MX_GROUP), RoundedInputs(weights, scheme)
    return None


def with_e2m1_inputs(weights: FourBitFloats) -> WeightFormat:
    """Return modelopt's NVFP4 with inputs rounded where their scale is stored.

    It names weights alone and weights with inputs the same; without inputs it stores no scale.
    Source: modelopt (``NVFP4QTensor.get_activation_scaling_factor``): largest input / 6 / 448.
    """
    scheme = ActivationScheme("e2m1", NV_GROUP)
    return RoundedInputs(weights, scheme, "input_scale", inverted=True, optional=True)


def with_e4m3_inputs(fields: ConfigFields, weights: WholeBytes, scale: str) -> WeightFormat:
    """Return a format of E4M3 with inputs rounded as ``activation_scheme`` says.

    Args:
        fields: Configuration, with or without that field.
        weights: Format that the matrices are stored in.
        scale: Name of the part with a static scale of inputs.

    Raises:
        ModelLoadError: The scheme is neither dynamic nor static.
    """
    scheme = fields.text("activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        raise fields.error("activation_scheme", "must be dynamic or static")
    size = weights.block[1] if weights.block else 0
    if size % GROUP_MULTIPLE:
        return weights
    stored = scale if scheme == "static" and not size else ""
    return RoundedInputs(weights, ActivationScheme("e4m3", size), stored)


def with_outliers(fields: ConfigFields, weights: WeightFormat) -> WeightFormat:
    """Return a format of bytes with inputs rounded but for outliers, as LLM.int8() does.

    Raises:
        ModelLoadError: The threshold is no number from 0 up.
    """
    threshold = 6.0
    if fields.values.get("llm_int8_threshold") == 0:
        fields.read.add("llm_int8_threshold")
        threshold = float("inf")
    elif fields.has("llm_int8_threshold"):
        threshold = fields.number("llm_int8_threshold")
    return RoundedInputs(weights, ActivationScheme("outliers", threshold=threshold))


def with_fine_inputs(weight: Weight) -> Weight:
    """Return a matrix whose inputs are rounded to 16 bits, if it left that to the engine.

    Products with E4M3 codes have no integers, and tables of rows are rounded to 8 bits themselves.
    """
    if not isinstance(weight, QuantizedTensor | BlockMatrix):
        return weight
    form = weight.form
    if form.activations is not None or form.float_codes or form.table_type:
        return weight
    if isinstance(weight, BlockMatrix):
        return replace(weight, form=replace(form, activations=FINE))
    return replace(weight, activations=FINE)
