"""The words that `quire doctor` has for kernels."""

from __future__ import annotations

from quire.kernels.cpu.kernel_names import kernel_names
from quire.kernels.cpu.native import native
from quire.system.env import CPU_ISAS


def test_every_instruction_set_has_words() -> None:
    for isa in (*CPU_ISAS, *native.available_isas()):
        names = kernel_names(isa)
        assert len(names) == 5
        assert ("vpdpbusd" in str(names)) == (isa.startswith("amx") or isa[6:] in ("vnni", "bf16"))
        assert ("vdpbf16ps" in str(names)) == (isa == "avx512bf16")
        assert ("tiles" in str(names)) == isa.startswith("amx")
        assert ("128 bits" in str(names)) == isa.startswith("neon")


def test_the_reason_stands_with_bfloat16() -> None:
    names = kernel_names("avx512vnni", "fma measured faster")
    assert [kind for kind, name in names.items() if "measured" in name] == ["bfloat16 weights"]


def test_the_rows_for_tiles_are_told() -> None:
    names = kernel_names("amx", matrix_rows=("8 to 24", "4"))
    integers = names["quantized weights, int8 activations"]
    assert integers.startswith("tdpbssd tiles from 8 to 24 rows on")
    assert names["bfloat16 weights"].startswith("tdpbf16ps tiles from 4 rows on")
    assert names["bfloat16 KV cache"].startswith("tdpbf16ps tiles for prompts")


def test_tiles_that_never_pay_are_not_told() -> None:
    names = kernel_names("amx", matrix_rows=("", ""))
    assert names["quantized weights, int8 activations"] == "vpdpbusd, 512 bits"
    assert names["bfloat16 weights"] == "fma, 512 bits"
    assert kernel_names("scalar", matrix_rows=("", "")) == kernel_names("scalar")
