"""``quantization_config`` of a ``config.json``: the quantized matrices and their formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import translate
from pathlib import Path

from quire.checkpoints.config_fields import ConfigFields, read_json
from quire.checkpoints.formats import gptq
from quire.checkpoints.formats.awq import AWQFormat
from quire.checkpoints.formats.bitsandbytes import BitsAndBytesFormat, BytesOfBitsAndBytes
from quire.checkpoints.formats.compressed_tensors import (
    MX_GROUP,
    NV_GROUP,
    FourBitFloats,
    PackedIntegers,
    WholeBytes,
)
from quire.checkpoints.formats.gptq import GPTQFormat
from quire.checkpoints.formats.hqq import PACKINGS, HQQFormat
from quire.checkpoints.formats.quip import CODE_BOOKS, RESIDUAL_SCALE, QuipFormat
from quire.checkpoints.formats.rounded_inputs import RoundedInputs
from quire.checkpoints.formats.squeezellm import SqueezeLLMFormat
from quire.checkpoints.formats.stored_matrix import WeightFormat
from quire.checkpoints.formats.torchao import BITS as TORCHAO_BITS
from quire.checkpoints.formats.torchao import TorchaoFormat
from quire.checkpoints.quantized.input_rounding import (
    with_e2m1_inputs,
    with_e4m3_inputs,
    with_outliers,
    with_rounded_inputs,
)
from quire.checkpoints.quantized.module_targets import ModuleTarget, read_pattern, read_target
from quire.checkpoints.quantized.name_patterns import NamePattern
from quire.core.errors import UnsupportedArchitectureError
from quire.kernels.matrices.activation_scheme import ActivationScheme
from quire.kernels.matrices.row_tables import TABLE_BITS

FormatOf = Callable[[str], WeightFormat | None]


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """Quantization of the weights that a configuration states.

    Attributes:
        method: Name of the method in the configuration, such as ``gptq``.
        formats: All formats that matrices may be stored in.
        format_of: Function from a module's name to its format; None where its weights are floats.
        notices: Notices of what is done in another way than it asks.
    """

    method: str
    formats: tuple[WeightFormat, ...]
    format_of: FormatOf
    notices: tuple[str, ...] = ()


def read_quantization(path: Path) -> StoredQuantization | None:
    """Return what ``config.json`` of a folder says, or a file of settings next to it.

    None where weights are floats.

    Raises:
        UnsupportedArchitectureError: The method, or an option of it, is not implemented.
        ModelLoadError: A field is missing or out of range.
    """
    file = path / "config.json"
    values = read_json(file)
    if "quip_params" in values:
        refused = ConfigFields(values, str(file)).error(
            "quip_params", "must not be there: quip-sharp joins matrices and orders codes for a GPU"
        )
        raise UnsupportedArchitectureError(f"{refused} Use a checkpoint of QuIP-for-all.")
    name = next((key for key in KEYS if values.get(key) is not None), None)
    if name is None:
        found = next((known for known in SETTINGS_FILES if (path / known).exists()), None)
        own = {} if found is None else read_json(path / found)
        # An export to ONNX leaves a file of the same name, which is of its own weights.
        if found is None or "per_channel" in own:
            return None
        name, file = "quantization", path / found
        # NVIDIA's file has them one level below.
        settings = own.get(name, {}) if found == MODELOPT else own
        if not isinstance(settings, dict):
            raise ConfigFields(own, str(file)).error(name, "must be an object")
        # SqueezeLLM's file has AWQ's name, and nothing but the bits.
        method = "squeezellm" if set(settings) == {"wbits"} else SETTINGS_FILES[found]
        values = {name: {"quant_method": method, **settings}}
    fields = ConfigFields(values, str(file)).object(name)
    if fields is None:
        return None
    method = fields.text("quant_method", _usual_method(fields)).removeprefix("intel/")
    if method not in _METHODS:
        raise _unsupported(fields, "quant_method", f"must be one of {', '.join(_METHODS)}")
    return _METHODS[method](fields)


def _usual_method(fields: ConfigFields) -> str | None:
    """Return whose settings are meant where they do not say it, as the first of a program do."""
    if fields.has("quant_algo"):
        return "modelopt"
    in_bits = any(fields.values.get(f"load_in_{bits}bit") is True for bits in (4, 8))
    return "bitsandbytes" if in_bits else None


#: Where a configuration may say it.
KEYS = ("quantization_config", "compression_config")
#: Where NVIDIA's Model Optimizer has said it at first.
MODELOPT = "hf_quant_config.json"
#: Files of settings where ``config.json`` says nothing, and whose they are.
SETTINGS_FILES = {
    MODELOPT: "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "quantization_config.json": "QUiP",
}


def _gptq(fields: ConfigFields) -> StoredQuantization:
    # GPTQModel reads either name.
    kind = fields.text("checkpoint_format", fields.text("format", "gptq"))
    if kind not in ("gptq", "gptq_v2"):
        raise fields.error("checkpoint_format", "must be gptq or gptq_v2")
    if fields.boolean("is_marlin_format", False):
        raise fields.error("is_marlin_format", "must be false: convert it back to GPTQ's layout")
    fields.integer("bits")
    whole = _gptq_format(fields, GPTQFormat(4, 128, zeros_less_one=kind == "gptq"))
    rules: list[tuple[NamePattern, WeightFormat | None]] = []
    dynamic = fields.object("dynamic")
    # GPTQModel's rules of modules by patterns: those of ``-:`` are not quantized.
    for key in dynamic.values if dynamic else ():
        assert dynamic is not None
        pattern = read_pattern(fields, "dynamic", key.removeprefix("+:").removeprefix("-:"))
        own = dynamic.object(key)
        if key.startswith("-:"):
            rules.append((pattern, None))
        elif own is not None:
            rules.append((pattern, _gptq_format(own, whole)))

    def format_of(module: str) -> WeightFormat | None:
        return next((form for rule, form in rules if rule.match(module)), whole)

    return StoredQuantization("gptq", (whole, *_formats(form for _, form in rules)), format_of)


def _gptq_format(fields: ConfigFields, default: GPTQFormat) -> GPTQFormat:
    bits = fields.integer("bits", default.bits)
    if bits not in gptq.BITS:
        raise fields.error("bits", f"must be one of {', '.join(map(str, gptq.BITS))}")
    return replace(
        default,
        bits=bits,
        group_size=_group_size(fields, default.group_size),
        symmetric=fields.boolean("sym", default.symmetric),
    )


#: Its own packing, which stores zeros as they are, and the kernels for it.
_AUTO_ROUND = ("auto_round", "auto_round:exllamav2", "auto_round:tritonv2", "auto_round:triton")


def _auto_round(fields: ConfigFields) -> StoredQuantization:
    # Versions before 0.5 name the kernel, and the packing within.
    name = "packing_format" if fields.has("packing_format") else "backend"
    packing = fields.text(name, "auto_round")
    if "awq" in packing:
        return replace(_awq(fields), method="auto-round")
    in_gptq = "gptq" in packing
    if not in_gptq and packing not in _AUTO_ROUND:
        rule = "must be auto_round, auto_round:auto_gptq or auto_round:auto_awq"
        raise fields.error(name, rule)
    whole = _gptq_format(fields, GPTQFormat(4, 128, zeros_less_one=in_gptq))
    own: dict[str, WeightFormat | None] = {}
    extra = fields.object("extra_config")
    for module in extra.values if extra else ():
        assert extra is not None
        settings = extra.object(module)
        if settings is not None:
            is_float = settings.integer("bits", whole.bits) >= 16
            own[module] = None if is_float else _gptq_format(settings, whole)
    formats = (whole, *_formats(own.values()))
    return StoredQuantization("auto-round", formats, lambda module: own.get(module, whole))


def _awq(fields: ConfigFields) -> StoredQuantization:
    name = next((n for n in ("version", "checkpoint_format", "format") if fields.has(n)), "version")
    if fields.text(name, "gemm").lower() != "gemm":
        raise fields.error(name, "must be gemm")
    if fields.integer("bits" if fields.has("bits") else "w_bit") != 4:
        raise fields.error("bits", "must be 4")
    size = _group_size(fields, name="group_size" if fields.has("group_size") else "q_group_size")
    whole = AWQFormat(size, symmetric=not fields.boolean("zero_point", True))
    return _but_skipped(fields, "awq", whole)


def _bitsandbytes(fields: ConfigFields) -> StoredQuantization:
    in_bytes = fields.boolean("load_in_8bit", False)
    whole: WeightFormat = BitsAndBytesFormat()
    if in_bytes:
        whole = with_outliers(fields, BytesOfBitsAndBytes())
    return _everywhere("bitsandbytes", whole)


def _compressed_tensors(fields: ConfigFields) -> StoredQuantization:
    groups = fields.object("config_groups")
    if groups is None:
        raise fields.error("config_groups", "is required")
    if fields.text("quantization_status", "compressed") not in ("compressed", "frozen"):
        raise fields.error("quantization_status", "must be compressed or frozen")
    common = fields.text("format", "")
    _refuse_transforms(fields)
    notices = []
    if fields.object("kv_cache_scheme") is not None:
        notices.append("kv_cache_scheme is not used: the cache has the type of --kv-cache-dtype")
    ignored = [read_target(fields, "ignore", name) for name in fields.strings("ignore")]
    targets: list[tuple[ModuleTarget, WeightFormat]] = []
    for key in groups.values:
        group = groups.object(key)
        weights = None if group is None else group.object("weights")
        if group is None or weights is None:
            continue
        own = group.text("format", common)
        made = _compressed_format(weights, own)
        inputs = group.object("input_activations")
        if inputs is not None:
            made, notice = with_rounded_inputs(inputs, made, key)
            notices += [notice] if notice else []
        targets += [
            (read_target(group, "targets", name), made) for name in group.strings("targets")
        ]
    if not targets:
        raise fields.error("config_groups", "must quantize weights")

    def format_of(module: str) -> WeightFormat | None:
        if any(target.fits(module) for target in ignored):
            return None
        # As compressed-tensors' match_targets: the order of the groups says nothing.
        found = [(target.rank(module), form) for target, form in targets if target.fits(module)]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    return StoredQuantization(
        "compressed-tensors",
        tuple(_formats(form for _, form in targets)),
        format_of,
        tuple(dict.fromkeys(notices)),
    )


def _refuse_transforms(fields: ConfigFields) -> None:
    sparsity = fields.object("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        raise _unsupported(sparsity, "format", "must be dense: sparse matrices are not read")
    transforms = fields.object("transform_config")
    if transforms is not None and transforms.object("config_groups") is not None:
        raise _unsupported(transforms, "config_groups", "must be empty: rotations are not done")


def _compressed_format(weights: ConfigFields, name: str) -> WeightFormat:
    bits, kind = weights.integer("num_bits"), weights.text("type", "int")
    size = _group_size(weights, 0)
    block = _block(weights)
    symmetric = weights.boolean("symmetric", True)
    if name == "pack-quantized" and kind == "int" and bits in gptq.BITS:
        return PackedIntegers(bits, size, symmetric)
    if name in ("int-quantized", "naive-quantized") and kind == "int" and bits == 8:
        return WholeBytes("I8", size, block)
    if name in ("float-quantized", "naive-quantized") and kind == "float" and bits == 8:
        return WholeBytes("F8_E4M3", size, block)
    if name == "mxfp8-quantized" and kind == "float" and bits == 8:
        return WholeBytes("F8_E4M3", size, scale_type="e8m0")
    if name == "nvfp4-pack-quantized" and bits == 4:
        return FourBitFloats(NV_GROUP)
    if name == "mxfp4-pack-quantized" and bits == 4:
        return FourBitFloats(MX_GROUP)
    raise _unsupported(weights, "num_bits", f"must go with type {kind} and format {name}")


def _fp8(fields: ConfigFields) -> StoredQuantization:
    if fields.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise fields.error("fmt", "must be e4m3")
    block = _block(fields, "weight_block_size")
    # Transformers names scales otherwise than AutoFP8, whose settings know no blocks.
    is_theirs = "weight_block_size" in fields.values
    name = "weight_scale_inv" if is_theirs else "weight_scale"
    of_inputs = "activation_scale" if is_theirs else "input_scale"
    parts = frozenset(("weight", name, "input_scale", of_inputs))
    whole = WholeBytes("F8_E4M3", block=block, scale=name, marker=name, parts=parts)
    made = with_e4m3_inputs(fields, whole, of_inputs)
    return _but_skipped(fields, "fp8", made)


def _fbgemm(fields: ConfigFields) -> StoredQuantization:
    parts = frozenset(("weight", "weight_scale", "input_scale_ub"))
    made = RoundedInputs(WholeBytes("F8_E4M3", parts=parts), ActivationScheme("e4m3"))
    told = "activation_scale_ub is not used: scales of activations are those of their values"
    notices = (told,) if fields.has("activation_scale_ub") else ()
    return replace(_but_skipped(fields, "fbgemm_fp8", made), notices=notices)


def _modelopt(fields: ConfigFields) -> StoredQuantization:
    algorithm = fields.text("quant_algo")
    if algorithm not in ("FP8", "NVFP4"):
        raise fields.error("quant_algo", "must be FP8 or NVFP4")
    of_kv = ("k_scale", "v_scale")
    bytes_of = WholeBytes(
        "F8_E4M3", parts=frozenset(("weight", "weight_scale", "input_scale", *of_kv))
    )
    whole: WeightFormat = RoundedInputs(bytes_of, ActivationScheme("e4m3"), "input_scale")
    if algorithm == "NVFP4":
        names = ("weight", "weight_scale", "weight_scale_2", "input_scale", *of_kv)
        floats = FourBitFloats(
            NV_GROUP, "weight", "weight_scale_2", False, "weight_scale_2", frozenset(names)
        )
        whole = with_e2m1_inputs(floats)
    name = "ignore" if fields.has("ignore") else "exclude_modules"
    skipped = [re.compile(translate(text)) for text in fields.strings(name)]

    def format_of(module: str) -> WeightFormat | None:
        return None if any(fits.match(module) for fits in skipped) else whole

    return StoredQuantization("modelopt", (whole,), format_of)


def _hqq(fields: ConfigFields) -> StoredQuantization:
    """Read HQQ's: matrices say what they are, so rules of single modules need no reading."""
    settings = fields.object("quant_config")
    weights = settings.object("weight_quant_params") if settings else None
    bits = None
    if weights is not None:
        bits = weights.integer("nbits")
        if bits not in PACKINGS:
            known = ", ".join(map(str, sorted(PACKINGS)))
            raise weights.error("nbits", f"must be one of {known}")
        if weights.has("axis") and weights.integer("axis", minimum=0) != 1:
            raise weights.error("axis", "must be 1, groups along the inputs")
    whole = HQQFormat(bits)
    return _everywhere("hqq", whole)


def _quip(fields: ConfigFields) -> StoredQuantization:
    """Read QuIP-for-all's."""
    bits_of = {name: bits for bits, name in CODE_BOOKS.items()}
    book = fields.text("codebook")
    if book not in bits_of:
        raise _unsupported(fields, "codebook", f"must be one of {', '.join(bits_of)}")
    scale = RESIDUAL_SCALE
    if fields.has("opt_resid_scale"):
        scale = fields.number("opt_resid_scale", above=-3e38)
    merged = fields.boolean("merge_suv", False)
    whole = QuipFormat(bits_of[book], scale, has_factors=not merged)
    return _but_skipped(fields, "quip", whole)


def _torchao(fields: ConfigFields) -> StoredQuantization:
    kind = fields.object("quant_type")
    settings = None if kind is None else kind.object("default")
    if settings is None:
        raise fields.error("quant_type", "must have default, the settings of all modules")
    name, bits = settings.text("_type"), 8
    if name not in ("Int8WeightOnlyConfig", "IntxWeightOnlyConfig"):
        raise _unsupported(
            settings, "_type", "must be Int8WeightOnlyConfig or IntxWeightOnlyConfig"
        )
    data = settings.object("_data")
    dtype = data.object("weight_dtype") if data else None
    if name == "IntxWeightOnlyConfig" and dtype is not None:
        known = {f"int{number}": number for number in TORCHAO_BITS}
        if dtype.text("_data") not in known:
            raise dtype.error("_data", f"must be one of {', '.join(known)}")
        bits = known[dtype.text("_data")]
    whole = TorchaoFormat(bits)
    return _everywhere("torchao", whole)


def _squeezellm(fields: ConfigFields) -> StoredQuantization:
    bits = fields.integer("wbits" if fields.has("wbits") else "bits")
    if bits not in TABLE_BITS:
        raise fields.error("wbits", f"must be one of {', '.join(map(str, TABLE_BITS))}")
    whole = SqueezeLLMFormat(bits)
    return _everywhere("squeezellm", whole)


def _mxfp4(fields: ConfigFields) -> StoredQuantization:
    """Read gpt-oss's: experts alone are quantized, and their tensors tell."""
    fields.has("modules_to_not_convert")
    whole = FourBitFloats(MX_GROUP)
    return _everywhere("mxfp4", whole)


_METHODS: dict[str, Callable[[ConfigFields], StoredQuantization]] = {
    "gptq": _gptq,
    "auto-round": _auto_round,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "modelopt": _modelopt,
    "hqq": _hqq,
    "mxfp4": _mxfp4,
    "torchao": _torchao,
    "squeezellm": _squeezellm,
    "quip": _quip,
    "QUiP": _quip,
}


def _everywhere(method: str, whole: WeightFormat) -> StoredQuantization:
    """Return a quantization of all matrices that have the format's parts."""
    return StoredQuantization(method, (whole,), lambda _: whole)


def _but_skipped(fields: ConfigFields, method: str, whole: WeightFormat) -> StoredQuantization:
    """Return a quantization of all modules but those that the configuration leaves out."""
    skipped = fields.strings("modules_to_not_convert")

    def format_of(module: str) -> WeightFormat | None:
        return None if any(part in module for part in skipped) else whole

    return StoredQuantization(method, (whole,), format_of)


def _unsupported(fields: ConfigFields, name: str, rule: str) -> UnsupportedArchitectureError:
    refused = fields.error(name, rule)
    return UnsupportedArchitectureError(f"{refused} Use a checkpoint of another format.")


def _group_size(fields: ConfigFields, default: int | None = None, name: str = "group_size") -> int:
    """Return the columns of a group, 0 for all of a row."""
    if fields.values.get(name) == -1:
        fields.read.add(name)
        return 0
    return fields.integer(name, default, minimum=0)


def _block(fields: ConfigFields, name: str = "block_structure") -> tuple[int, int] | None:
    if not fields.has(name):
        return None
    sizes = fields.values[name]
    if isinstance(sizes, str):  # as compressed-tensors wrote them at first: 128x128
        parts = sizes.split("x")
        sizes = [int(part) if part.isdecimal() and len(part) < 10 else 0 for part in parts]
    if (
        not isinstance(sizes, list)
        or len(sizes) != 2
        or not all(type(size) is int and 0 < size < 2**31 for size in sizes)
    ):
        raise fields.error(name, "must be two sizes")
    return sizes[0], sizes[1]


def _formats(formats: Iterable[WeightFormat | None]) -> list[WeightFormat]:
    return [form for form in formats if form is not None]
