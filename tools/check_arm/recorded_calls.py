"""Calls of the native module as data: arrays by memory and place, objects by number."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ArrayAt:
    """An array: its memory's number, the byte in it where it begins, and its form."""

    memory: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """An object of one of the module's classes, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class NewMemory:
    """Memory that Python made, with its content."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Written:
    """Python gave memory another content."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One call, and what it did.

    Attributes:
        owner: The object whose method or attribute it is; None for the module's own.
        name: Of the function, method, class or attribute.
        arguments: None for an attribute.
        result: What it returned; for a class the new object, for native memory an array in it.
        content: Memory whose content it changed, or that it returned, to that content.
    """

    owner: ObjectOf | None
    name: str
    arguments: tuple[Any, ...] | None
    result: Any
    content: dict[int, bytes]


Event = NewMemory | Written | Call


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """What one test asked of the module, in order."""

    name: str
    events: list[Event]


def memory_of(array: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Return the array that owns the memory, its first byte's address and the one past its last."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root, *np.lib.array_utils.byte_bounds(root)


def content_of(begin: int, end: int) -> bytes:
    """Return the bytes from one address to another."""
    return ctypes.string_at(begin, end - begin)
