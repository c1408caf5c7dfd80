"""The native module, ready to use: its instruction set chosen once, at import; nothing else."""

from __future__ import annotations

from typing import Any

from quire.core.errors import NoKernelError
from quire.kernels.cpu.isa_choice import choose_isa

try:
    from quire import _native
except ImportError as error:
    raise NoKernelError(
        f"[cpu] the native module must be built for this Python; got {error}. "
        "Run scripts/build_native or install the package."
    ) from error

#: Compiled, so without types.
native: Any = _native

#: How the kernels name an element type; the order of native/include/types.h.
DTYPE_CODES = {"float32": 0, "float16": 1, "bfloat16": 2}
KV_DTYPE_CODES = {**DTYPE_CODES, "fp8_e4m3": 3, "int8": 4, "int4": 5}


#: The instruction set in use, and why that one.
isa_choice = choose_isa(native)
native.set_isa(isa_choice.isa)

__all__ = ["DTYPE_CODES", "KV_DTYPE_CODES", "isa_choice", "native"]
