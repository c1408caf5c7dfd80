"""Decode every fixture by the literal layout, with torch alone, and compare with the digests.

Environment: torch and safetensors, no quantization library. From the repository's root,
``python -m tools.quantized_fixtures.check``. It says what the bits mean in the fewest lines; it is
not a reader and checks nothing else of a file.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures" / "quantized"
#: E2M1 by code; code 8 is -0.
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
#: Where AWQ keeps the n-th of eight columns within an int32.
AWQ_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
Parts = Mapping[str, Tensor]


def unpack(words: Tensor, bits: int, dim: int) -> Tensor:
    """Split int32 words into codes: a stream of bits along ``dim``, least significant first."""
    stream = words.movedim(dim, -1).contiguous()
    ones = (stream.view(torch.uint8).unsqueeze(-1) >> torch.arange(8)) & 1
    ones = ones.reshape(*stream.shape[:-1], -1, bits).to(torch.int64)
    return (ones << torch.arange(bits)).sum(-1).movedim(-1, dim)


def nibbles(packed: Tensor) -> Tensor:
    """Split bytes into codes along the last dim, the low half first."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()


def repeat(values: Tensor, like: Tensor, dim: int) -> Tensor:
    """Repeat each group's value over the ``like.shape[dim] / groups`` elements it holds for."""
    return values.repeat_interleave(like.shape[dim] // values.shape[dim], dim)


def power_of_two(exponents: Tensor) -> Tensor:
    """Decode E8M0."""
    return torch.pow(2.0, exponents.float() - 127)


def decode_compressed_tensors(parts: Parts, config: dict[str, Any]) -> Tensor:
    group = config["config_groups"]["group_0"]
    arguments, format_name, scale = group["weights"], group["format"], parts["weight_scale"]
    if format_name == "pack-quantized":
        rows, columns = parts["weight_shape"].tolist()
        bits = arguments["num_bits"]
        codes = unpack(parts["weight_packed"], bits, 1)[:, :columns]
        zeros = torch.full(scale.shape, 1 << (bits - 1))
        if "weight_zero_point" in parts:
            zeros = unpack(parts["weight_zero_point"], bits, 0)[:rows]
        return (codes - repeat(zeros, codes, 1)).to(scale.dtype) * repeat(scale, codes, 1)
    if format_name in ("int-quantized", "float-quantized"):
        weight = parts["weight"]
        if arguments["strategy"] == "block":
            for dim, size in enumerate(arguments["block_structure"]):
                scale = scale.repeat_interleave(size, dim).narrow(dim, 0, weight.shape[dim])
        return weight.to(scale.dtype) * scale
    if format_name == "mxfp8-quantized":
        weight = parts["weight"].float()
        return (weight * repeat(power_of_two(scale), weight, 1)).bfloat16()
    weight = FP4[nibbles(parts["weight_packed"])]
    if format_name == "mxfp4-pack-quantized":
        scale = power_of_two(scale)
    else:
        scale = scale.float() / parts["weight_global_scale"]
    return (weight * repeat(scale, weight, 1)).bfloat16()


def decode_gptq(parts: Parts, config: dict[str, Any]) -> Tensor:
    codes = unpack(parts["qweight"], config["bits"], 0)
    zeros = unpack(parts["qzeros"], config["bits"], 1)
    is_gptq = config["quant_method"] == "gptq" or "gptq" in config["packing_format"]
    if is_gptq and config.get("checkpoint_format") != "gptq_v2":
        zeros = zeros + 1
    g_idx = parts.get("g_idx", torch.arange(len(codes)) // config["group_size"]).long()
    return ((codes - zeros[g_idx]).half() * parts["scales"][g_idx]).T


def decode_awq(parts: Parts, config: dict[str, Any]) -> Tensor:
    codes, zeros = (
        unpack(parts[key], 4, 1).unflatten(1, (-1, 8))[:, :, AWQ_PLACES].flatten(1)
        for key in ("qweight", "qzeros")
    )
    return ((codes - repeat(zeros, codes, 0)).half() * repeat(parts["scales"], codes, 0)).T


def decode_bitsandbytes(parts: Parts, config: dict[str, Any]) -> Tensor:
    if "SCB" in parts:
        return parts["weight"].float() * parts["SCB"].unsqueeze(1) * torch.tensor(1 / 127)
    kind = config["bnb_4bit_quant_type"]
    state = json.loads(bytes(parts[f"weight.quant_state.bitsandbytes__{kind}"].tolist()))
    scales = parts["weight.absmax"]
    if "nested_offset" in state:
        nested = parts["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])
        values = parts["weight.nested_quant_map"][scales.long()]
        scales = values * nested[: len(values)] + torch.tensor(state["nested_offset"])
    table = parts["weight.quant_map"].clone()
    if kind == "fp4":
        table[8] = -0.0  # The library's kernel says so, though the file's table says 0.
    packed = parts["weight"].flatten()
    weight = table[torch.stack([packed >> 4, packed & 15], -1).flatten().long()]
    weight = weight * scales.repeat_interleave(state["blocksize"])[: len(weight)]
    return weight.to(getattr(torch, state["dtype"])).reshape(state["shape"])


def decode_hqq(parts: Parts, config: dict[str, Any]) -> Tensor:
    packed = parts["W_q"]
    codes = torch.cat([packed >> 4, packed & 15]).half()
    return ((codes - parts["zero"]) * parts["scale"]).reshape(parts["shape"].tolist())


def decode_torchao(parts: Parts, config: dict[str, Any]) -> Tensor:
    codes, scale = parts["_weight_qdata"], parts["_weight_scale"]
    zeros = repeat(parts["_weight_zero_point"], codes, 1)
    return ((codes - zeros).to(scale.dtype) * repeat(scale, codes, 1)).bfloat16()


def decode_mxfp4(parts: Parts, config: dict[str, Any]) -> Tensor:
    weight = FP4[nibbles(parts["blocks"])] * power_of_two(parts["scales"]).unsqueeze(-1)
    return weight.bfloat16().flatten(2).transpose(1, 2)


def decode_fp8(parts: Parts, config: dict[str, Any]) -> Tensor:
    weight, scale = parts["weight"].float(), parts["weight_scale_inv"]
    return (weight * repeat(repeat(scale, weight, 0), weight, 1)).bfloat16()


def decode_squeezellm(parts: Parts, config: dict[str, Any]) -> Tensor:
    codes = unpack(parts["qweight"], config["wbits"], 0).T
    weight = parts["lookup_table"].gather(1, codes)
    if "rows" not in parts:
        return weight
    for n in range(len(weight)):
        begin, end = parts["rows"][n : n + 2].tolist()
        for column, value in zip(parts["cols"][begin:end], parts["vals"][begin:end], strict=True):
            weight[n, column] += value
    return weight


DECODERS: dict[str, Callable[[Parts, dict[str, Any]], Tensor]] = {
    "compressed-tensors": decode_compressed_tensors,
    "gptq": decode_gptq,
    "auto-round": decode_gptq,
    "awq": decode_awq,
    "bitsandbytes": decode_bitsandbytes,
    "hqq": decode_hqq,
    "torchao": decode_torchao,
    "mxfp4": decode_mxfp4,
    "fp8": decode_fp8,
    "squeezellm": decode_squeezellm,
}


def wrong_weights(folder: Path) -> list[str]:
    """Return the names of the weights that decode to other bits than the library's."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    tensors = load_file(folder / "model.safetensors")
    wrong = []
    for name, facts in json.loads((folder / "dequantized.json").read_text()).items():
        method = config["quant_method"]
        prefix = f"{name}_" if method == "mxfp4" else name.removesuffix("weight")
        parts = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        weight = DECODERS[method](parts, config).contiguous()
        digest = hashlib.sha256(weight.view(torch.uint8).numpy().tobytes()).hexdigest()
        found = [str(weight.dtype).removeprefix("torch."), list(weight.shape), digest]
        if found != [facts["dtype"], facts["shape"], facts["sha256"]]:
            wrong.append(name)
    return wrong


if __name__ == "__main__":
    failures = 0
    for path in sorted(path for path in FIXTURES.iterdir() if path.is_dir()):
        names = wrong_weights(path)
        failures += bool(names)
        print(path.name, "differs: " + ", ".join(names) if names else "equal")
    sys.exit(failures > 0)
