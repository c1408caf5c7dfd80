"""The speed at which this machine reads and computes, measured and kept for later processes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from quire.system import env
from quire.system.processor import read_processor


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """The machine's highest rates, in bytes and operations a second; 0: it cannot do that.

    Attributes:
        read: Bytes a second read from memory.
        float32, bfloat16, int8: Operations a second, a multiplication with an addition being two.
    """

    read: float
    float32: float
    bfloat16: float
    int8: float

    @property
    def compute(self) -> float:
        """Operations a second of the fastest type of number."""
        return max(self.float32, self.bfloat16, self.int8)

    def ridge(self, peak: float) -> float:
        """Return the operations for each byte read above which ``peak`` binds, not memory."""
        return peak / self.read

    def rows_at_ridge(self, bits: int) -> float:
        """Return how many rows a step must have for arithmetic to bind linears of such weights.

        Each weight is read once and takes two operations a row: int8's for weights of at most 8
        bits, bfloat16's for 16, float32's where the machine does not have those.
        """
        peak = self.bfloat16 if bits > 8 else self.int8
        return self.ridge(max(peak, self.float32)) * bits / 8 / 2


def remember(speed: MachineSpeed) -> None:
    """Keep ``speed`` as this processor's; where the folder cannot be written, do nothing."""
    with suppress(OSError, RuntimeError):  # the latter: the user has no home folder
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(speed) | {"processor": read_processor()}))


def remembered() -> MachineSpeed | None:
    """Return what was measured last on a processor like this; None when nothing was."""
    try:
        found = json.loads(_path().read_text())
        speed = MachineSpeed(
            **{field.name: float(found[field.name]) for field in fields(MachineSpeed)}
        )
        if found["processor"] != read_processor():
            return None
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return None
    return speed if speed.read > 0 and speed.compute > 0 else None


def _path() -> Path:
    return env.cache_folder() / "machine_speed.json"
