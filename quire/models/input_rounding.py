"""What a configuration says of the inputs of quantized matrices, and what becomes of it."""

from __future__ import annotations

from quire.kernels.activation_scheme import ActivationScheme
from quire.models.config_fields import ConfigFields
from quire.quantization.formats.compressed_tensors import PackedIntegers, WholeBytes
from quire.quantization.formats.rounded_inputs import RoundedInputs
from quire.quantization.formats.stored_matrix import WeightFormat

#: What becomes of inputs that are not rounded as a checkpoint asks.
OWN = "they stay in the engine's own precision"
#: Inputs of a group of E4M3 are a multiple of this.
GROUP_MULTIPLE = 32


def with_rounded_inputs(
    inputs: ConfigFields, weights: WeightFormat, group: str
) -> tuple[WeightFormat, str]:
    """Return a format with inputs rounded as ``input_activations`` of compressed-tensors say.

    Args:
        inputs: ``input_activations``.
        weights: How the matrices are stored.
        group: Name of the group of settings, for what is told.

    Returns:
        The format; and what is done in another way, empty for nothing.

    Raises:
        ModelLoadError: A field is missing or of another type.
    """
    bits, kind = inputs.integer("num_bits"), inputs.text("type", "int")
    strategy = inputs.text("strategy", "tensor")
    asked = f"{bits}-bit {kind}"
    if bits != 8 or inputs.values.get("scale_dtype") not in (None, "torch.float32"):
        return weights, f"activations are not rounded to {asked} as {group} asks: {OWN}"
    codes = {"int": "int8", "float": "e4m3"}.get(kind, "")
    takes_floats = isinstance(weights, WholeBytes) and weights.dtype != "I8"
    if not codes or not isinstance(weights, WholeBytes | PackedIntegers):
        return weights, f"activations are not rounded to {asked} as {group} asks: {OWN}"
    if (codes == "e4m3") != takes_floats:
        rule = "weights of another type multiply activations"
        return weights, f"activations are not rounded to {asked} as {group} asks: {rule} finer"
    has_zeros = not inputs.boolean("symmetric", True)
    is_dynamic = inputs.values.get("dynamic", False) is True
    size = inputs.integer("group_size", 0, minimum=0) if strategy == "group" else 0
    by_group = strategy == "group" and codes == "e4m3" and is_dynamic
    if by_group and size and size % GROUP_MULTIPLE == 0 and not has_zeros:
        return RoundedInputs(weights, ActivationScheme(codes, size)), ""
    whole = strategy in ("token", "tensor") if is_dynamic else strategy == "tensor"
    if not whole or (has_zeros and codes == "e4m3"):
        return weights, f"activations are not rounded in {strategy}s as {group} asks: {OWN}"
    made = RoundedInputs(weights, ActivationScheme(codes, has_zeros=has_zeros), not is_dynamic)
    if is_dynamic and strategy == "tensor":
        # One scale for all rows of a batch would make a request depend on the others.
        return made, f"activations have a scale for each token where {group} asks for one"
    return made, ""


def with_e4m3_inputs(fields: ConfigFields, weights: WholeBytes) -> WeightFormat:
    """Return a format of E4M3 with inputs rounded as ``activation_scheme`` says.

    Raises:
        ModelLoadError: It is neither dynamic nor static.
    """
    scheme = fields.text("activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        raise fields.error("activation_scheme", "must be dynamic or static")
    size = weights.block[1] if weights.block else 0
    if size % GROUP_MULTIPLE:
        return weights
    is_stored = scheme == "static" and not size
    return RoundedInputs(weights, ActivationScheme("e4m3", size), is_stored)


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
