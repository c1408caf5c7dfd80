"""Names of the instructions that multiply weights and caches by kind; nothing decides by them.

The instructions are chosen when the native module is compiled: native/simd/dot.h for codes of 2 to
8 bits, native/cpu/linear_tile.h and
linear_matrix_tile.h for floats, attention_products.h for caches.
"""

from __future__ import annotations

_INTEGERS = {
    "scalar": "plain C++",
    "avx2": "vpmaddubsw, 256 bits",
    "avx512": "vpmaddubsw, 512 bits",
    "avx512vnni": "vpdpbusd, 512 bits",
    "avx512bf16": "vpdpbusd, 512 bits",
    "amx": "tdpbssd tiles from {} rows on, vpdpbusd below",
    "amx_emulated": "emulated tiles from {} rows on, vpdpbusd below",
    "neon": "smull and smlal, 128 bits",
    "neon_dotprod": "sdot, 128 bits",
    "neon_i8mm": "usdot, 128 bits",
}
_FLOATS = {
    "scalar": "plain C++",
    "avx2": "fma, 256 bits",
    "avx512": "fma, 512 bits",
    "avx512vnni": "fma, 512 bits",
    "avx512bf16": "fma, 512 bits",
    "amx": "fma, 512 bits",
    "amx_emulated": "fma, 512 bits",
    "neon": "fmla, 128 bits",
    "neon_dotprod": "fmla, 128 bits",
    "neon_i8mm": "fmla, 128 bits",
}
_BRAINS = {
    **_FLOATS,
    "avx512bf16": "vdpbf16ps, 512 bits",
    "amx": "tdpbf16ps tiles from {} rows on, fma below",
    "amx_emulated": "emulated tiles from {} rows on, fma below",
}
_CACHES = {
    **_FLOATS,
    "avx512bf16": "vdpbf16ps, 512 bits",
    "amx": "tdpbf16ps tiles for prompts, fma to decode",
    "amx_emulated": "emulated tiles for prompts, fma to decode",
}


def kernel_names(
    isa: str, reason: str = "", matrix_rows: tuple[str, str] = ("1", "1")
) -> dict[str, str]:
    """Return kind of weights or cache to the instructions that multiply it on ``isa``.

    Args:
        isa: The instruction set.
        reason: The reason why it was chosen, where that was for bfloat16's sake.
        matrix_rows: Number of rows from which on quantized and bfloat16 weights take matrix tiles;
            empty where they never do.
    """
    floats = _FLOATS[isa]
    brain = _BRAINS[isa].format(matrix_rows[1]) if matrix_rows[1] else floats
    has_tiles = matrix_rows[0] or not isa.startswith("amx")
    integers = _INTEGERS[isa if has_tiles else "avx512vnni"]
    return {
        "quantized weights, int8 activations": integers.format(matrix_rows[0]),
        "quantized weights, --activations fp32": f"dequantized, {floats}",
        "bfloat16 weights": f"{brain} ({reason})" if reason else brain,
        "float32 and float16 weights": floats,
        "bfloat16 KV cache": _CACHES[isa],
    }
