"""Threads that decode to a type for the first time together: msgspec alone crashes."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The second thread decodes to a type while the first reads the annotations of one inside it.
TOGETHER = """
import sys, threading, time
from dataclasses import make_dataclass
from msgspec import convert, defstruct
from quire.core.built_types import built

reading, values, kept = threading.Event(), {"first": 1, "inner": {"value": 2}, "last": 3}, []

def slow():
    reading.set()
    time.sleep(0.2)
    return int

def define(name, *fields):
    if sys.argv[1] == "struct":
        return defstruct(name, fields, module=__name__)
    return make_dataclass(name, fields, namespace={"__module__": __name__})

Inner = define("Inner", ("value", "slow()"))
Kind = define("Kind", ("first", "int"), ("inner", "Inner"), ("last", "int"))

def decode():
    kept.append(convert(values, built(Kind)))

first = threading.Thread(target=decode)
first.start()
reading.wait()
decode()
first.join()
assert [(each.first, each.inner.value, each.last) for each in kept] == 2 * [(1, 2, 3)], kept
"""


@pytest.mark.parametrize("kind", ["dataclass", "struct"])
def test_threads_may_decode_to_a_type_for_the_first_time_together(kind):
    done = subprocess.run([sys.executable, "-c", TOGETHER, kind], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
