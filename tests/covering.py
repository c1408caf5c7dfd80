"""Which rows of a test's parameters the smaller circles run: a covering array.

Every value of every parameter once, then pairs of values of different parameters, greedily. It
knows no test and no circle: ``tests/circles.py`` says what is reduced.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from hashlib import sha256
from itertools import combinations
from typing import Any

#: A parameter with more values is a table of cases: each once, and in no pairs.
MAX_PAIRED_VALUES = 6

Atom = tuple[str, Hashable]
Row = Mapping[str, Any]


def _key(value: Any) -> Hashable:
    """Return what is equal for equal values; ``1``, ``1.0`` and ``True`` are three."""
    try:
        hash(value)
    except TypeError:
        with suppress(pickle.PicklingError, TypeError, AttributeError):
            return pickle.dumps(value)  # as a text, arrays are cut short, and NaN has no sign
        return repr(value)
    return type(value), value


def _atoms(name: str, value: Any) -> Iterator[Atom]:
    """Yield a value, and the fields of one that has some."""
    yield name, _key(value)
    if isinstance(value, tuple):
        for number, part in enumerate(value):
            yield f"{name}.{number}", _key(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield f"{name}.{field.name}", _key(getattr(value, field.name))


def _wanted(rows: Sequence[Row], unpaired: frozenset[str]) -> list[frozenset[Hashable]]:
    """Return what each row covers: its values, and pairs of those of few values."""
    atoms = [[[*_atoms(name, value)] for name, value in row.items()] for row in rows]
    distinct: dict[str, set[Hashable]] = {}
    for row in atoms:
        for name, key in (atom for parameter in row for atom in parameter):
            distinct.setdefault(name, set()).add(key)
    paired = {n for n, keys in distinct.items() if 1 < len(keys) <= MAX_PAIRED_VALUES} - unpaired
    wanted = []
    for row in atoms:
        covered: set[Hashable] = {atom for parameter in row for atom in parameter}
        for one, other in combinations(row, 2):
            covered.update((a, b) for a in one if a[0] in paired for b in other if b[0] in paired)
        wanted.append(frozenset(covered))
    return wanted


def cover(name: str, rows: Sequence[Row], unpaired: frozenset[str] = frozenset()) -> list[int]:
    """Return the numbers of the rows to keep, in order.

    Deterministic by ``name``: rows that cover equally much are taken in an order that differs from
    test to test, so that tests of one table do not all leave out the same rows.

    Args:
        name: Of the test.
        rows: Its parameters' values, by their names, a row each.
        unpaired: Parameters whose values are wanted once each, however few they are.
    """
    wanted = _wanted(rows, unpaired)
    order = sorted(
        range(len(rows)), key=lambda number: sha256(f"{name} {number}".encode()).digest()
    )
    left = set().union(*wanted)
    used: Counter[Hashable] = Counter()
    kept: list[int] = []
    while left:
        gains = {number: len(wanted[number] & left) for number in order}
        most = max(gains.values())
        # Of rows that cover equally much, the one whose values were taken least often.
        best = min(
            (number for number in order if gains[number] == most),
            key=lambda number: sum(used[atom] for atom in wanted[number]),
        )
        kept.append(best)
        order.remove(best)
        left -= wanted[best]
        used.update(wanted[best])
    return sorted(kept)
