"""``scripts/install``: what ``make serve`` says while it fetches and compiles."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "install"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """The script as a module, with a build folder of its own and a clock that runs by itself."""
    loader = SourceFileLoader("install", str(SCRIPT))
    module = module_from_spec(spec_from_loader("install", loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "LOG", tmp_path / "install.log")
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: {0, 1})
    seconds = iter(range(0, 10_000, 10))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(seconds)))
    return module


def test_fetching_and_compiling_are_told(install, tmp_path):
    """``pip -q`` compiled for 335 seconds without a line."""
    files = ["linear_quantized", "attention", "norm", "linear", "moe", "rows"]
    (tmp_path / "cp311").mkdir()
    (tmp_path / "cp311" / "build.ninja").write_text(
        "".join(f"build a/{name}.cpp.o: CXX_COMPILER__x {name}.cpp\n" for name in files)
    )
    lines = ["  Downloading numpy-2.4-cp311.whl.metadata (6.6 kB)\n"]
    lines += ["  Downloading numpy-2.4-cp311.whl (16.9 MB)\n"]
    lines += [f"  [{i}/7] Building CXX object a/{name}.cpp.o\n" for i, name in enumerate(files, 1)]
    lines += ["  [7/7] Linking CXX shared module _native.so\n"]
    said = []
    install.watch(lines, said.append)
    assert said[0] == "  fetching numpy-2.4-cp311.whl (16.9 MB)"
    assert said[1] == "  compiling 7 files on 2 cores: about 17 s if nothing else runs"
    assert said[2].startswith("  2 of 7 files compiled, about ") and said[2].endswith(" left")
    assert 2 < len(said) < 6, "a line now and then"


def test_minutes_are_told_as_people_say_them(install):
    assert install.minutes(40) == "40 s" and install.minutes(200) == "3 minutes"


def test_make_compiles_for_this_machine_and_tests_for_all():
    """``make serve`` compiled seven instruction sets, of which a machine uses four at most."""
    rules = (ROOT / "Makefile").read_text().split("\n\n")
    core, dev = (next(r for r in rules if f"$(VENV)/{name}:" in r) for name in (".core", ".dev"))
    assert "QUIRE_THIS_MACHINE=ON" in core and "QUIRE_THIS_MACHINE=OFF" in dev
