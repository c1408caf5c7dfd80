"""The only place that reads environment variables; every one Quire knows is listed here."""

from __future__ import annotations

import os
from pathlib import Path

from quire.core.errors import ConfigError

#: Instruction sets there are kernels for, each processor family's worst first; amx_emulated is for
#: tests.
CPU_ISAS = (
    *("scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx", "amx_emulated"),
    *("neon", "neon_dotprod", "neon_i8mm"),
)

VARIABLES = {
    "QUIRE_CPU_ISA": f"highest instruction set used: {', '.join(CPU_ISAS)}",
    "QUIRE_LOG_LEVEL": "debug, info, warning or error",
    "QUIRE_API_KEY": "key that clients must send",
    "QUIRE_CACHE": "folder of the store of models and of what it fetched; default: ~/.cache/quire",
    "QUIRE_CLUSTER_KEY": "what ranks and engines on other machines must show to the first one",
    "QUIRE_MACHINE_ID": "name of this machine among ranks; those of one name share memory",
}


def get(name: str) -> str | None:
    """Return the value of ``name``, or None when unset or empty.

    Raises:
        KeyError: ``name`` is not in :data:`VARIABLES`.
    """
    if name not in VARIABLES:
        raise KeyError(name)
    return os.environ.get(name) or None


def cpu_isa() -> str | None:
    """Return the instruction set ``QUIRE_CPU_ISA`` asks for, or None when it asks for nothing.

    Raises:
        ConfigError: The value is not an instruction set we know.
    """
    value = get("QUIRE_CPU_ISA")
    if value is not None and value not in CPU_ISAS:
        raise ConfigError(f"[env] QUIRE_CPU_ISA must be one of {', '.join(CPU_ISAS)}; got {value}.")
    return value


def log_level() -> str:
    """Return the level ``QUIRE_LOG_LEVEL`` asks for, ``info`` when it asks for nothing.

    Raises:
        ConfigError: The value is not a level.
    """
    value = get("QUIRE_LOG_LEVEL") or "info"
    known = ("debug", "info", "warning", "error")
    if value not in known:
        raise ConfigError(f"[env] QUIRE_LOG_LEVEL must be one of {', '.join(known)}; got {value}.")
    return value


def omp_num_threads() -> int | None:
    """Return the compute threads that ``OMP_NUM_THREADS`` asks for, or None."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdigit() and int(limit) > 0 else None


def ray_address() -> str | None:
    """Return ``host:port`` of the Ray cluster that ``RAY_ADDRESS`` names, if it does so."""
    address = os.environ.get("RAY_ADDRESS", "")
    return address if address.rpartition(":")[2].isdigit() else None


def ray_uses_tls() -> bool:
    """Return whether Ray's processes speak to each other by TLS: ``RAY_USE_TLS``."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def cache_folder() -> Path:
    """Return the folder that keeps what Quire fetched: ``QUIRE_CACHE``, or the user's cache."""
    own = get("QUIRE_CACHE")
    if own is not None:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "quire"
