"""The kernels' instruction set: the one asked for, or the best, which is measured once.

avx512bf16 multiplies bfloat16 weights and KV caches with vdpbf16ps, avx512vnni with float32
multiply-adds, which are the faster ones on some processors. The two round differently, so the
choice must not change from start to start: it is kept in ``QUIRE_CACHE`` for each processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.core.errors import ConfigError
from quire.kernels.cpu import measured_once
from quire.system import env

NAME, KEYS = "bfloat16", ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class IsaChoice:
    """An instruction set, and why it was chosen; empty where there was nothing to choose."""

    isa: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CoreSpeed:
    """Operations a second of one core: float32 multiply-adds, bfloat16 dot products."""

    float32: float
    bfloat16: float


def choose_isa(native: Any) -> IsaChoice:
    """Return the instruction set of ``QUIRE_CPU_ISA``, or the best of this machine.

    Args:
        native: The native module.

    Raises:
        ConfigError: The one asked for is not there.
    """
    wanted, available = env.cpu_isa(), native.available_isas()
    if wanted is not None:
        if wanted not in (*available, *native.emulated_isas()):
            raise ConfigError(
                f"[env] QUIRE_CPU_ISA must be one this machine has ({', '.join(available)}); "
                f"got {wanted}."
            )
        return IsaChoice(wanted, "asked for by QUIRE_CPU_ISA")
    best = available[-1]
    if best != "avx512bf16":
        return IsaChoice(best)
    return choose_by_speed(remembered() or _measure(native))


def choose_by_speed(speed: CoreSpeed) -> IsaChoice:
    """Return avx512bf16 where its dot products are the faster ones, else avx512vnni."""
    rates = f"{speed.bfloat16 / 1e9:.0f} against {speed.float32 / 1e9:.0f} GFLOP/s a core"
    if speed.bfloat16 > speed.float32:
        return IsaChoice("avx512bf16", f"vdpbf16ps measured faster than fma, {rates}")
    return IsaChoice("avx512vnni", f"fma measured faster than vdpbf16ps, {rates}")


def remembered() -> CoreSpeed | None:
    """Return what was measured on this processor; None when nothing was."""
    found = measured_once.remembered(NAME, KEYS)
    return CoreSpeed(*found) if found else None


def remember(speed: CoreSpeed) -> None:
    """Keep ``speed`` for this processor; where the folder cannot be written, do nothing."""
    measured_once.remember(NAME, dict(zip(KEYS, (speed.float32, speed.bfloat16), strict=True)))


def _measure(native: Any) -> CoreSpeed:
    speed = CoreSpeed(*native.brief_flops("avx512bf16"))
    remember(speed)
    # What another process kept in the meantime counts for both.
    return remembered() or speed
