"""A plugin of pytest: keeps what tests ask of the native module's AVX2 kernels, and the answers.

``RECORDED_CALLS`` is the folder for the files, one for each process; ``tools.check_arm.replay``
asks another processor's module the same. A test is left out when it fails, moves more than
``MAX_BYTES`` or uses objects that were made outside of it.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quire
from quire import _native  # type: ignore[attr-defined]
from tools.check_arm.recorded_calls import (
    ArrayAt,
    Call,
    Event,
    NewMemory,
    ObjectOf,
    RecordedTest,
    Written,
    content_of,
    memory_of,
)

ISA = "avx2"
#: Of arguments and results of one test.
MAX_BYTES = 8 << 20
UNRECORDED = ("isa", "set_isa", "num_threads", "count_chunks", "packed_weights_version")


class Recording:
    """The events of one test; ``usable`` until something cannot be kept.

    Args:
        nodeid: The test's; empty before the first test.
    """

    def __init__(self, nodeid: str = "") -> None:
        self.nodeid = nodeid
        self.events: list[Event] = []
        self.usable = True
        self._objects: dict[int, ObjectOf] = {}
        self._memory: dict[tuple[int, int], int] = {}
        self._contents: dict[int, bytes] = {}
        self._alive: list[Any] = []  # so that no address or id is given out twice
        self._bytes = 0

    def call(
        self, owner: Any, name: str, arguments: tuple[Any, ...] | None, run: Callable[[], Any]
    ) -> Any:
        if not self.usable:
            return run()
        of = None if owner is None else self._object(owner)
        encoded = None if arguments is None else self._encode(arguments)
        for number, content in self._changed():
            self._add(Written(number, content))
        result = run()
        if self.usable:
            before = set(self._memory.values())
            returned = self._encode(result, native=True)
            content = dict(self._changed())
            content |= {i: self._contents[i] for i in set(self._memory.values()) - before}
            self._add(Call(of, name, encoded, returned, content))
        return result

    def _add(self, event: Event) -> None:
        self.events.append(event)
        contents = event.content
        kept = sum(map(len, contents.values())) if isinstance(contents, dict) else len(contents)
        self._bytes += kept
        self.usable = self.usable and self._bytes <= MAX_BYTES

    def _changed(self) -> Iterator[tuple[int, bytes]]:
        for (begin, end), number in self._memory.items():
            content = content_of(begin, end)
            if content != self._contents[number]:
                self._contents[number] = content
                yield number, content

    def _object(self, value: Any) -> ObjectOf:
        if id(value) not in self._objects:
            self.usable = False  # made outside of this test
        return self._objects.get(id(value), ObjectOf(-1))

    def _array(self, array: np.ndarray, native: bool) -> ArrayAt:
        root, begin, end = memory_of(array)
        number = self._memory.get((begin, end))
        if number is None:
            number = self._memory[begin, end] = len(self._memory)
            self._alive.append(root)
            self.usable = self.usable and end - begin <= MAX_BYTES
            self._contents[number] = content_of(begin, end) if self.usable else b""
            if not native:
                self._add(NewMemory(number, self._contents[number]))
        offset = array.__array_interface__["data"][0] - begin
        return ArrayAt(number, offset, array.shape, array.strides, array.dtype.str)

    def _encode(self, value: Any, native: bool = False) -> Any:
        if isinstance(value, np.ndarray):
            return self._array(value, native)
        if isinstance(value, list | tuple):
            return type(value)(self._encode(item, native) for item in value)
        if type(value).__module__ != _native.__name__:
            return value
        if native and id(value) not in self._objects:
            self._objects[id(value)] = ObjectOf(len(self._objects))
            self._alive.append(value)
        return self._object(value)


def _real(value: Any) -> Any:
    if isinstance(value, Recorded):
        return value.real
    if isinstance(value, list | tuple):
        return type(value)(map(_real, value))
    return value


class Recorded:
    """An object of the native module, or the module: the same, with its calls recorded."""

    def __init__(self, real: Any, is_module: bool = False) -> None:
        self.real = real
        self._owner = None if is_module else real

    def __getattr__(self, name: str) -> Any:
        def get() -> Any:
            return getattr(self.real, name)

        if self._owner is None and (name in UNRECORDED or name.startswith("measure")):
            return get()
        if self._owner is None and name in ("available_isas", "emulated_isas", "own_isas"):
            return lambda *_, **__: [] if name == "emulated_isas" else [ISA]
        if callable(get()):
            return lambda *arguments: self._call(name, get(), tuple(map(_real, arguments)))
        return _wrapped(recording.call(self._owner, name, None, get))

    def _call(self, name: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        return _wrapped(recording.call(self._owner, name, arguments, lambda: function(*arguments)))


def _wrapped(result: Any) -> Any:
    return Recorded(result) if type(result).__module__ == _native.__name__ else result


recording = Recording()
_native.set_isa(ISA)
sys.modules["quire._native"] = quire._native = Recorded(_native, True)  # type: ignore
_folder = Path(os.environ["RECORDED_CALLS"])
_folder.mkdir(parents=True, exist_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record one test."""
    global recording
    recording = Recording(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a test recorded that passed."""
    if report.nodeid != recording.nodeid:
        return  # another process ran it
    if report.when != "call" or not report.passed or not recording.usable:
        return
    if any(isinstance(event, Call) for event in recording.events):
        with (_folder / f"{os.getpid()}.calls").open("ab") as file:
            pickle.dump(RecordedTest(report.nodeid, recording.events), file)
