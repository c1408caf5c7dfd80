"""Worlds of ranks for tests: a function that every rank runs, in a process of its own.

    python -m tests.distributed.worlds MODULE:FUNCTION SILENCE TRANSPORT PLACE RANK SIZE [WORD ...]

The function gets a :class:`World`, then the words, and tells the test something by printing it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.distributed.command_ring import CommandChannel
from quire.distributed.group import Group
from quire.distributed.shared_memory_group import SharedMemory
from tests.preforked import Preforked

ROOT = Path(__file__).parents[2]
SILENCE_SECONDS = 120.0


@dataclass
class World:
    """What a rank has."""

    group: Group
    commands: CommandChannel
    memory: SharedMemory | None = None
    torch: Any = None

    def meet(self, group: Group | None = None) -> None:
        """Wait for all ranks, and until this one's messages have left: it may end afterwards."""
        (group or self.group).any(False)
        if self.torch is not None:
            self.torch.finish_given()


@contextmanager
def shared_memory(
    size: int, groups: Sequence[Sequence[int]] = (), **options: Any
) -> Iterator[SharedMemory]:
    """Memory of a world whose ranks all are children of this process."""
    memory = SharedMemory.create(size, groups, **options)
    try:
        yield memory
    finally:
        memory.close()


class Ranks:
    """The processes of a world; none of them outlives the block.

    Args:
        target: ``MODULE:FUNCTION`` that each runs.
        place: What they share: memory, or the port where rank 0 listens.
        size: Of the world.
        words: For the function.
        silence: Seconds until a rank counts as lost.
        absent: Ranks that are not started.
    """

    def __init__(
        self,
        target: str,
        place: SharedMemory | int,
        size: int,
        *words: Any,
        silence: float = SILENCE_SECONDS,
        absent: Sequence[int] = (),
    ) -> None:
        descriptors = [place.descriptor] if isinstance(place, SharedMemory) else []
        kind = [silence, *(["memory", *descriptors] if descriptors else ["torch", place])]
        self.processes: list[Any] = []
        for rank in sorted(set(range(size)) - set(absent)):
            arguments = [str(word) for word in (target, *kind, rank, size, *words)]
            command = [sys.executable, "-m", "tests.distributed.worlds", *arguments]
            self.processes.append(Preforked(command, cwd=ROOT, pass_fds=descriptors, **_PIPES))
        self._readers = ThreadPoolExecutor(len(self.processes))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self._readers.shutdown()
        for process in self.processes:
            with process:
                pass

    def lines(self) -> list[str]:
        """Return the next line of each."""
        found = []
        for process in self.processes:
            assert process.stdout is not None
            found.append(process.stdout.readline().strip())
        return found

    def ends(self, seconds: float = 60.0) -> list[str]:
        """Return what each has printed, when all have ended; its errors where it failed."""
        told = [self._readers.submit(process.stdout.read) for process in self.processes]
        for one in told:  # until then none of them ends
            one.result(seconds)
        found = []
        for process, one in zip(self.processes, told, strict=True):
            _, err = process.communicate(timeout=seconds)
            text = one.result().strip()
            found.append(text if process.returncode == 0 else err[-2000:] or "killed")
        return found


_PIPES: dict[str, Any] = {
    "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
}  # fmt: skip


def main() -> None:
    warnings.simplefilter("error")
    target, silence, kind, place, rank, size, *words = sys.argv[1:]
    module, function = target.split(":")
    call = getattr(import_module(module), function)
    if kind == "memory":
        memory = SharedMemory.attach(int(place), int(rank), silence=float(silence))
        with suppress(BrokenPipeError):
            call(World(memory.group(), memory.commands(), memory), *words)
        memory.close()
        return
    from quire.distributed.torch_group import TorchWorld

    world = TorchWorld("127.0.0.1", int(place), int(rank), int(size), silence=float(silence))
    call(World(world.group(), world.commands(), torch=world), *words)
    world.close()
    # Torch tells of whose connection ends. A rank that has seen another one's end must not end
    # before a third one has seen it, too: all of them say that they have nothing more to tell, and
    # are let go.
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    sys.stdin.read()


if __name__ == "__main__":
    main()
