"""What joins ranks of several machines, where it cannot."""

from __future__ import annotations

import socket
import struct
import sys
import threading

import pytest

from quire.core.errors import ConfigError, RankDeadError
from quire.distributed.socket_commands import SocketCommands
from quire.distributed.torch_group import TorchWorld
from tests.ports import free_ports


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"pip install 'quire\[distributed\]'"):
        TorchWorld("127.0.0.1", free_ports(), 0, 2)


def test_a_backend_that_torch_lacks_is_refused() -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="torch must have mpi"):
        TorchWorld("127.0.0.1", free_ports(), 0, 1, backend="mpi")


class Board:
    """Keys that two ranks of one process see."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._text = ""

    def tell(self, key: str, text: str) -> None:
        self._text = text
        self._told.set()

    def ask(self, key: str) -> bytes:
        assert self._told.wait(60)
        return self._text.encode()


def connect(board: Board) -> tuple[SocketCommands, SocketCommands]:
    """Return the ends of a driver and a worker."""
    found: list[SocketCommands] = []

    def drive() -> None:
        found.append(SocketCommands("127.0.0.1", 0, 2, board.tell, board.ask, 60.0))

    driver = threading.Thread(target=drive)
    driver.start()
    # Strangers come first: one is silent, one says something else, one is gone at once.
    address = ("127.0.0.1", int(board.ask("").split()[0]))
    with socket.create_connection(address), socket.create_connection(address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: a-host-with-a-name\r\n\r\n")
        with socket.create_connection(address) as gone:
            reset = struct.pack("ii", 1, 0)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        worker = SocketCommands("127.0.0.1", 1, 2, board.tell, board.ask, 60.0)
        driver.join(60)
    return found[0], worker


def test_a_stranger_is_no_worker() -> None:
    driver, worker = connect(Board())
    driver.send([b"for the ", b"worker"])
    assert worker.receive() == b"for the worker"
    driver.close()
    with pytest.raises(RankDeadError, match="rank 0 is lost: it has closed the connection"):
        worker.receive()
    worker.close()


def test_a_worker_that_is_gone_is_named() -> None:
    driver, worker = connect(Board())
    worker.close()
    with pytest.raises(RankDeadError, match="rank 1 is lost"):
        for _ in range(100):
            driver.send([bytes(100_000)])
    driver.close()
