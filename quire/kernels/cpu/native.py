"""The native module, ready to use: its instruction set chosen once, at import; nothing else."""

from __future__ import annotations

from typing import Any

from quire.core import env
from quire.core.errors import ConfigError, NoKernelError

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
KV_DTYPE_CODES = {**DTYPE_CODES, "fp8_e4m3": 3, "int8": 4}


def _choose_isa() -> None:
    wanted = env.cpu_isa()
    available = native.available_isas()
    if wanted is None:
        return
    if wanted not in available:
        raise ConfigError(
            f"[env] QUIRE_CPU_ISA must be one this machine has ({', '.join(available)}); "
            f"got {wanted}."
        )
    native.set_isa(wanted)


_choose_isa()

__all__ = ["DTYPE_CODES", "KV_DTYPE_CODES", "native"]
