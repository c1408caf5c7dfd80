"""Objects compiled for one instruction set share no inline function with the rest of the module."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ISAS = ("avx2", "avx512", "avx512vnni", "avx512bf16", "amx", "amx_emulated")


@pytest.mark.parametrize("isa", ISAS)
def test_weak_symbols_are_of_that_isa_only(isa: str) -> None:
    """The linker keeps one copy of a weak symbol for all: it must not be one with AVX-512 code."""
    found = ROOT.glob(f"build/*/CMakeFiles/kernels_{isa}.dir/native/cpu/*.o")
    # What scripts/check_native builds has the sanitizers' own weak symbols.
    objects = sorted(path for path in found if "sanitized" not in path.parts)
    nm = shutil.which("nm")
    if not objects or not nm:
        pytest.skip("needs the objects of a build in this tree, and nm")
    listing = subprocess.run(
        [nm, "--demangle", "--defined-only", *objects], capture_output=True, text=True, check=True
    ).stdout
    symbols = [parts for line in listing.splitlines() if len(parts := line.split(maxsplit=2)) == 3]
    # DW.ref.* is where a compiler notes the address of C++'s personality routine: no code of ours.
    weak = [
        name
        for _, kind, name in symbols
        if kind in ("W", "V", "u") and not name.startswith("DW.ref.")
    ]
    assert weak
    assert [name for name in weak if f"quire::{isa}::" not in name] == []
