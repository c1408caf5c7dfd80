"""Collectives in shared memory, in plain Python: what the native ones replace."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.errors import RankDeadError
from quire.distributed.group import CollectiveCounts

AREA = 64 << 20


class SharedMemory:
    def __init__(self, fd: int, rank: int, size: int) -> None:
        self.descriptor = fd
        self.size = size
        self.rank = rank
        self.map = mmap.mmap(fd, 0)
        self.words = np.frombuffer(self.map, np.int64, 512)
        self.reason = ""

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        fd = os.memfd_create("quire")
        os.ftruncate(fd, 4096 + (size + 1) * AREA)
        s = cls(fd, 0, size)
        s.words[0] = size
        return s

    @classmethod
    def attach(cls, fd: int, rank: int) -> SharedMemory:
        s = cls(os.dup(fd), rank, 0)
        s.size = int(s.words[0])
        return s

    def check(self) -> None:
        if self.words[1]:
            raise RankDeadError(self.reason or f"rank {self.words[1] - 1} is gone")

    def wait(self, index: int, least: int) -> None:
        n = 0
        while self.words[index] < least:
            n += 1
            if n > 2000:
                time.sleep(0.0002)
            self.check()

    def fail(self, rank: int, reason: str) -> None:
        self.reason = reason
        self.words[1] = rank + 1

    def group(self, rank: int) -> SharedMemoryGroup:
        return SharedMemoryGroup(self, rank)

    def ring(self, rank: int) -> Ring:
        return Ring(self, rank)

    def close(self) -> None:
        os.close(self.descriptor)


class Ring:
    def __init__(self, m: SharedMemory, rank: int) -> None:
        self.m, self.rank, self.n = m, rank, 0
        self.area = memoryview(m.map)[4096 + m.size * AREA : 4096 + (m.size + 1) * AREA]

    def send(self, buffers: Sequence[bytes]) -> None:
        data = b"".join(buffers)
        for r in range(1, self.m.size):
            self.m.wait(100 + r, self.n)
        self.area[:8] = len(data).to_bytes(8, "little")
        self.area[8 : 8 + len(data)] = data
        self.n += 1
        self.m.words[99] = self.n

    def receive(self) -> bytes:
        self.m.wait(99, self.n + 1)
        k = int.from_bytes(self.area[:8], "little")
        d = bytes(self.area[8 : 8 + k])
        self.n += 1
        self.m.words[100 + self.rank] = self.n
        return d


class SharedMemoryGroup:
    name = "stub"

    def __init__(self, m: SharedMemory, rank: int) -> None:
        self.m, self.rank, self.size, self.n = m, rank, m.size, 0
        self.counts = CollectiveCounts()

    def _ex(self, x: Any) -> list[Any]:
        x = np.ascontiguousarray(x)
        d = x.view(np.uint8).reshape(-1) if x.size else np.empty(0, np.uint8)
        at = 4096 + self.rank * AREA
        a = np.frombuffer(self.m.map, np.uint8, AREA, at)
        a[:8] = np.frombuffer(d.nbytes.to_bytes(8, "little"), np.uint8)
        a[8 : 8 + d.nbytes] = d
        self.barrier()
        out = []
        for r in range(self.size):
            b = np.frombuffer(self.m.map, np.uint8, AREA, 4096 + r * AREA)
            k = int.from_bytes(bytes(b[:8]), "little")
            out.append(b[8 : 8 + k].copy().view(x.dtype))
        self.barrier()
        return out

    def barrier(self) -> None:
        self.n += 1
        self.m.words[10 + self.rank] = self.n
        for r in range(self.size):
            self.m.wait(10 + r, self.n)

    def all_gather_columns(self, part: Any, widths: Sequence[int], out: Any) -> Any:
        self.counts.add("all_gather_columns", out.nbytes)
        out[...] = np.concatenate(
            [
                p.reshape(-1, w) if w else np.empty((len(out), 0), np.float32)
                for p, w in zip(self._ex(part), widths)
            ],
            axis=1,
        )
        return out

    def gather_columns(self, part: Any, widths: Sequence[int], out: Any, root: int = 0) -> Any:
        self.counts.add("gather_columns", 4 * len(part) * sum(widths))
        ps = self._ex(part)
        if out is not None:
            out[...] = np.concatenate(
                [
                    p.reshape(-1, w) if w else np.empty((len(out), 0), np.float32)
                    for p, w in zip(ps, widths)
                ],
                axis=1,
            )
        return out

    def any(self, flag: bool) -> bool:
        return any(bool(p[0]) for p in self._ex(np.array([flag], np.int64)))

    def close(self) -> None:
        pass
