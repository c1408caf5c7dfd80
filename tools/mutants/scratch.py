"""A copy of the working tree that faults are put into, with an environment that imports it.

It stays in ``build/mutants/``: the next run copies what has changed, and compiles that alone.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quire.kernels.cpu.native import native
from tools.mutants.table import ROOT, Mutant
from tools.mutants.watching import LOG

#: A test that takes longer under a fault has found it.
TEST_SECONDS = 120
PASSED, FAILED, NO_TESTS = 0, 1, 5


@dataclass(frozen=True, slots=True)
class Run:
    """What pytest said.

    Attributes:
        code: Its exit status; negative when a signal ended it.
        last: The test that it ran last, which under ``-x`` is the one that failed.
        failed: All that failed.
        seconds: It took.
        text: It printed.
    """

    code: int
    last: str
    failed: frozenset[str]
    seconds: float
    text: str

    @property
    def has_failed(self) -> bool:
        """Whether a test failed, ran out of time or crashed: not that there was none to run."""
        return (self.code == FAILED or self.code < 0) and bool(self.last)


class Scratch:
    """The copy.

    Args:
        folder: It and what is compiled of it are kept there.
    """

    def __init__(self, folder: Path = ROOT / "build" / "mutants") -> None:
        self.tree = folder / "tree"
        self._objects = folder / "native"
        self._log = folder / "tests.log"
        self._python = self.tree / ".venv" / "bin" / "python"
        folder.mkdir(parents=True, exist_ok=True)

    def refresh(self) -> None:
        """Make the copy equal to the working tree: what git knows, and what it does not ignore."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        names = {name for name in listed if name and (ROOT / name).is_file()}
        for name in names:
            source, copy = ROOT / name, self.tree / name
            if not copy.exists() or not filecmp.cmp(source, copy, shallow=False):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)  # its time is now: what it is compiled into is older
                _forget_bytecode(copy)
        for path in self.tree.rglob("*"):
            name = str(path.relative_to(self.tree))
            is_kept = name in names or name.startswith(".venv") or "__pycache__" in name
            if path.is_file() and not is_kept:
                path.unlink()
        self._make_environment()
        self._use_module(next((ROOT / "quire").glob("_native*.so")))

    def _make_environment(self) -> None:
        """Have a Python that sees this one's packages, and of the editable one the copy alone."""
        folder = self.tree / ".venv"
        if not self._python.exists():
            venv.create(folder, symlinks=True)
        standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        packages = [p for p in map(Path, sys.path) if p.is_dir() and p.resolve() != ROOT]
        kept = [
            str(path)
            for path in packages
            if path.name.endswith("-packages") or not {str(path), str(path.parent)} & standard
        ]
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "tree.pth").write_text("\n".join([str(self.tree), *kept]) + "\n")
        for link in ROOT.glob(".venv-*"):
            if not (self.tree / link.name).is_symlink():
                (self.tree / link.name).symlink_to(link.resolve())
        said = self._call([str(self._python), "-c", "import quire; print(quire.__file__)"])
        if said.stdout.strip() != str(self.tree / "quire" / "__init__.py"):
            raise RuntimeError(f"quire must be imported from {self.tree}; got {said.stdout}")

    def _use_module(self, module: Path) -> None:
        for old in (self.tree / "quire").glob("_native*.so"):
            old.unlink()
        shutil.copy(module, self.tree / "quire")

    @contextmanager
    def fault(self, mutant: Mutant) -> Iterator[None]:
        """Have a fault in the copy meanwhile."""
        path = self.tree / mutant.file
        text = path.read_text()
        try:
            path.write_text(mutant.applied(text))
            _forget_bytecode(path)
            if mutant.is_native:
                self.build()
            yield
        finally:
            path.write_text(text)
            _forget_bytecode(path)
            if mutant.is_native:
                self._use_module(next((ROOT / "quire").glob("_native*.so")))

    def build(self) -> None:
        """Compile the native module of the copy, for this machine's instruction sets."""
        flags = ["-DQUIRE_ONLY_ISAS=" + ";".join(native.available_isas())]
        done = self._call(
            ["scripts/build_native", *flags], QUIRE_BUILD=str(self._objects), PYTHON=sys.executable
        )
        if done.returncode:
            raise RuntimeError(f"the fault does not compile:\n{done.stdout[-2000:]}")
        self._use_module(next(self._objects.glob("_native*.so")))

    def test(self, arguments: Sequence[str]) -> Run:
        """Run tests of the copy."""
        self._log.unlink(missing_ok=True)
        started = time.monotonic()
        options = ["-q", "--color=no", "-p", "no:cacheprovider", "-p", "tools.mutants.watching"]
        done = self._call(
            [str(self._python), "-m", "pytest", *options, f"--timeout={TEST_SECONDS}", *arguments],
            **{LOG: str(self._log)},
        )
        seconds = time.monotonic() - started
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        begun = [line.removeprefix("started ") for line in lines if line.startswith("started ")]
        failed = {line.removeprefix("failed ") for line in lines if line.startswith("failed ")}
        last = begun[-1] if begun else ""
        return Run(done.returncode, last, frozenset(failed), seconds, done.stdout)

    def _call(self, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        fixed = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CI": "1"}
        env = {**os.environ, **fixed, **environment}
        env.pop("PYTHONPATH", None)
        process = subprocess.Popen(
            command, cwd=self.tree, env=env, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            text, _ = process.communicate()
        finally:  # what a test that died has started
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, process.returncode, text)


def _forget_bytecode(path: Path) -> None:
    """Python tells a changed file by its size and the second of its change, which may be equal."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
