"""How fast this machine reads and computes, measured, and remembered for ``quire top``."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from quire.core import env


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """What the machine reaches at most, in bytes and operations a second; 0: it cannot do that.

    Attributes:
        read: Bytes read from memory.
        float32, bfloat16, int8: Operations, a multiplication with an addition being two.
    """

    read: float
    float32: float
    bfloat16: float
    int8: float

    @property
    def compute(self) -> float:
        """Operations a second of the fastest type of number."""
        return max(self.float32, self.bfloat16, self.int8)


def measure() -> MachineSpeed:
    """Measure for about three seconds, on the threads that the kernels have been given."""
    from quire.kernels.cpu.native import native

    return MachineSpeed(
        native.measure_read(), native.measure_fma(), native.measure_dot(), native.measure_int8()
    )


def remember(speed: MachineSpeed) -> None:
    """Keep ``speed``; where the folder cannot be written, do nothing."""
    path = _path()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(speed)))


def remembered() -> MachineSpeed | None:
    """Return what was measured last; None when nothing was."""
    try:
        found = json.loads(_path().read_text())
        speed = MachineSpeed(
            **{field.name: float(found[field.name]) for field in fields(MachineSpeed)}
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return speed if speed.read > 0 and speed.compute > 0 else None


def _path() -> Path:
    return env.cache_folder() / "machine_speed.json"
