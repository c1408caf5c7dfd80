"""Ask this processor's kernels what ``tools.check_arm.record`` kept, and compare bit for bit.

``python -m tools.check_arm.replay ISA FOLDER``: on this machine's best instruction set, which must
be ISA. Only NaN may have other bits.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quire import _native  # type: ignore[attr-defined]
from tools.check_arm.recorded_calls import (
    ArrayAt,
    Call,
    NewMemory,
    ObjectOf,
    RecordedTest,
    memory_of,
)

LINE_BYTES = 64


class Difference(Exception):
    """The module did something else than it did when it was recorded."""


class Replay:
    """The events of one test, one after another."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._memory: dict[int, np.ndarray] = {}
        self._dtypes: dict[int, set[str]] = {}

    def run(self, test: RecordedTest) -> int:
        """Return how many calls it made.

        Raises:
            Difference: A result, or memory after a call, is not what was recorded.
        """
        calls = 0
        for event in test.events:
            if isinstance(event, NewMemory):
                self._memory[event.number] = _aligned(len(event.content))
            if not isinstance(event, Call):
                self._memory[event.number][:] = np.frombuffer(event.content, np.uint8)
                continue
            self._call(event)
            calls += 1
        return calls

    def _call(self, call: Call) -> None:
        owner = _native if call.owner is None else self._objects[call.owner.number]
        value = getattr(owner, call.name)
        if call.arguments is not None:
            value = value(*self._decode(call.arguments))
        self._take(call, call.result, value)
        for number, content in call.content.items():
            self._compare(call, number, content)

    def _decode(self, value: Any) -> Any:
        if isinstance(value, ArrayAt):
            return self._array(value)
        if isinstance(value, ObjectOf):
            return self._objects[value.number]
        if isinstance(value, list | tuple):
            return type(value)(map(self._decode, value))
        return value

    def _array(self, at: ArrayAt) -> np.ndarray:
        self._dtypes.setdefault(at.memory, set()).add(at.dtype)
        memory = self._memory[at.memory]
        return np.ndarray(at.shape, at.dtype, memory, at.offset, at.strides)

    def _take(self, call: Call, recorded: Any, value: Any) -> None:
        if isinstance(recorded, ObjectOf):
            self._objects[recorded.number] = value
        elif isinstance(recorded, ArrayAt):
            root, begin, end = memory_of(value)
            if recorded.memory not in self._memory:
                self._memory[recorded.memory] = np.ndarray((end - begin,), np.uint8, root)
            self._dtypes.setdefault(recorded.memory, set()).add(recorded.dtype)
        elif isinstance(recorded, list | tuple):
            for one, other in zip(recorded, value, strict=True):
                self._take(call, one, other)
        elif recorded != value and not (recorded != recorded and value != value):
            raise Difference(f"{call.name}: {value} instead of {recorded}")

    def _compare(self, call: Call, number: int, content: bytes) -> None:
        memory = self._memory[number]
        found = memory.tobytes()
        if found == content:
            return
        is_float = "<f4" in self._dtypes.get(number, ()) and len(found) % 4 == 0
        dtype = np.dtype(np.float32 if is_float else np.uint8)
        got, wanted = np.frombuffer(found, dtype), np.frombuffer(content, dtype)
        bits = np.dtype(np.uint32 if is_float else np.uint8)
        differ = got.view(bits) != wanted.view(bits)
        if is_float:
            differ &= ~(np.isnan(got) & np.isnan(wanted))
        if differ.any():
            first = int(differ.argmax())
            raise Difference(
                f"{call.name}: {int(differ.sum())} of {len(got)} elements, the first at {first}: "
                f"{got[first]!r} instead of {wanted[first]!r}"
            )


def _aligned(size: int) -> np.ndarray:
    room = np.empty(size + LINE_BYTES, np.uint8)
    begin = -room.ctypes.data % LINE_BYTES
    return room[begin : begin + size]


def read_tests(folder: Path) -> Iterator[RecordedTest]:
    """Return the tests of all files of a folder."""
    for path in sorted(folder.glob("*.calls")):
        with path.open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)


def main(isa: str, folder: Path) -> int:
    """Replay all tests of a folder; 1 when one differs, or there is none."""
    if _native.isa() != isa:
        print(f"this machine has {_native.isa()}, not {isa}")
        return 1
    tests = calls = 0
    differing = []
    for test in read_tests(folder):
        tests += 1
        try:
            calls += Replay().run(test)
        except Difference as error:
            differing.append(f"{test.name}: {error}")
    for difference in differing:
        print(difference)
    print(f"{_native.isa()}: {calls} calls of {tests} tests, {len(differing)} tests differ")
    return 1 if differing or not tests else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
