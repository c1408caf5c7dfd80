"""Where ranks find their driver, and engines their server: by TCP, each saying which it is.

Messages are data alone, so that whoever reaches the port can run nothing; who has no key is sent
away.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from quire import __version__
from quire.core import env
from quire.core.errors import ConfigError, ModelLoadError
from quire.core.log import get_logger
from quire.distributed.connections import (
    GONE_SECONDS,
    Door,
    introduce,
    keep_alive,
    readable,
)
from quire.runner.parallel.handshake import decode, receive, send

log = get_logger(__name__)

Address = tuple[str, int]
Role = Literal["rank", "engine"]
#: How long a rank waits for its driver, and a driver for its ranks.
MEETING_SECONDS = 600.0
_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.25
_OTHER_KEY = "[parallel] QUIRE_CLUSTER_KEY must be the same on all machines; got another."


class Hello(msgspec.Struct, frozen=True):
    """Who a rank is, or an engine.

    Attributes:
        rank: Which it is to be.
        key: What only ranks of this engine know; it is proven and never sent.
        version: Of the program.
        machine: The same for all that can share memory.
        node: Name of the machine, for people.
        pid: Process id there.
        role: What it is to be.
        settings: What must be the same on all machines.
    """

    rank: int
    key: str
    version: str
    machine: str
    node: str
    pid: int
    role: Role = "rank"
    settings: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True):
    """Whether the driver takes it: empty, or why not."""

    refusal: str = ""


@dataclass(frozen=True, slots=True)
class RankLink:
    """A rank or an engine that has come.

    Attributes:
        connection: To it.
        hello: Who it is.
    """

    connection: socket.socket
    hello: Hello

    def __str__(self) -> str:
        said = self.hello
        return f"{said.role} {said.rank} on {said.node} (process {said.pid})"


def machine_id() -> str:
    """Return what is the same for processes that can share memory.

    The kernel's number of this boot, and the namespace of process ids: through ``/proc`` others are
    reached by them.
    """
    given = env.get("QUIRE_MACHINE_ID")
    if given is not None:
        return given
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.getppid()}"


def hello(
    rank: int, key: str, role: Role = "rank", settings: Mapping[str, str] | None = None
) -> Hello:
    """Return what this process says of itself."""
    place = machine_id(), socket.gethostname(), os.getpid()
    return Hello(rank, key, __version__, *place, role, dict(settings or {}))


class Meeting:
    """A driver's port, open until all ranks have come, or a server's for its engines.

    Args:
        address: To listen at; port 0 is any.
        key: That those who come must have.
        role: What they are to be.
        settings: That they must have, too, by name.

    Raises:
        ConfigError: It cannot be listened at.
    """

    def __init__(
        self,
        address: Address,
        key: str,
        role: Role = "rank",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._role, self._settings = role, dict(settings or {})
        try:
            self._door = Door(socket.create_server(address), key)
        except OSError as error:
            raise ConfigError(
                f"[parallel] --master-addr and --master-port must be of this machine and free; got "
                f"{address[0]}:{address[1]} ({error.strerror}). Give another."
            ) from error

    @property
    def address(self) -> Address:
        """Where ranks come."""
        return self._door.address

    def gather(
        self,
        ranks: Collection[int],
        check: Callable[[], None] = lambda: None,
        seconds: float = MEETING_SECONDS,
    ) -> list[RankLink]:
        """Return the ranks, in their order, when all have come; the port is closed then.

        Args:
            ranks: Which are to come.
            check: Called often; raises where one will not come.
            seconds: The longest wait.

        Raises:
            ModelLoadError: Some have not come.
            QuireError: As ``check`` says.
        """
        found: dict[int, RankLink] = {}
        end = time.monotonic() + seconds
        try:
            while len(found) < len(ranks):
                check()
                if time.monotonic() > end:
                    missing = ", ".join(str(rank) for rank in sorted(ranks) if rank not in found)
                    raise ModelLoadError(
                        f"[parallel] all ranks must come within {seconds:g} s; got none for "
                        f"{missing}. See the log of the machines that they are to run on."
                    )
                self.greet(ranks, found)
        except BaseException:
            for link in found.values():
                link.connection.close()
            raise
        finally:
            self.close()
        return [found[rank] for rank in sorted(found)]

    def greet(self, ranks: Collection[int], found: dict[int, RankLink]) -> None:
        """Let in those that come within a moment, and drop those that are gone again.

        Args:
            ranks: Which may come.
            found: Those that are here, by number.
        """
        greetings = self._door.greet(_RETRY_SECONDS)
        _forget_gone(found)
        for connection, greeting in greetings:
            link = self._meet(connection, greeting, ranks, found)
            if link is not None:
                found[link.hello.rank] = link
                log.info("[parallel] %s is here", link)

    def _meet(
        self,
        connection: socket.socket,
        greeting: bytes | None,
        ranks: Collection[int],
        found: dict[int, RankLink],
    ) -> RankLink | None:
        """Answer who has connected and said something; None where it is sent away."""
        try:
            connection.settimeout(_CONNECT_SECONDS)
            host = connection.getpeername()[0]
            if greeting is None:
                refusal = _OTHER_KEY
            else:
                said = decode(greeting, Hello)
                refusal = self._refusal(said, ranks, found)
            send(connection, Answer(refusal))
            if not refusal:
                receive(connection, Answer)  # it may have given up meanwhile
                _keep_up(connection)
                return RankLink(connection, said)
            log.warning("[parallel] %s was sent away: %s", host, refusal)
        except (OSError, EOFError) as error:
            log.warning("[parallel] one that connected is no %s: %s", self._role, error)
        connection.close()
        return None

    def _refusal(self, said: Hello, ranks: Collection[int], found: dict[int, RankLink]) -> str:
        if said.version != __version__:
            return (
                f"[parallel] all machines must run Quire {__version__}, as the first one does; got "
                f"{said.version} on {said.node}."
            )
        role = self._role
        if said.role != role:
            return (
                f"[parallel] here {role}s come together; got a {said.role} of {said.node}. Give "
                "all machines the same -tp, -pp and -dp."
            )
        if said.rank not in ranks:
            return f"[parallel] {role}s must be {_span(ranks)}; got {said.rank}."
        if said.rank in found:
            return f"[parallel] each {role} must come once; got {found[said.rank]} already."
        return self._difference(said)

    def _difference(self, said: Hello) -> str:
        """Return which setting one that has come does not share; empty for none."""
        for name in sorted({*self._settings, *said.settings}):
            own, others = (of.get(name, "the default") for of in (self._settings, said.settings))
            if own != others:
                return (
                    f"[parallel] {name} must be the same on all machines; got {others} on "
                    f"{said.node}, and {own} on machine 0."
                )
        return ""

    def close(self) -> None:
        """Close the port."""
        self._door.close()


def join(
    address: Address,
    own: Hello,
    seconds: float = MEETING_SECONDS,
    check: Callable[[], None] = lambda: None,
) -> socket.socket:
    """Go to the driver or server, as soon as it listens, and return the connection.

    Args:
        address: Where it listens.
        own: What it says of itself.
        seconds: The longest wait.
        check: Called often; raises where it is to go there no more.

    Raises:
        ModelLoadError: There is nobody.
        ConfigError: It takes no such one.
        QuireError: As ``check`` says.
    """
    end = time.monotonic() + seconds
    while True:
        check()
        connection = None
        try:
            connection = socket.create_connection(address, timeout=_CONNECT_SECONDS)
            if connection.getsockname() == connection.getpeername():
                raise OSError("a port that nobody listens at met itself")
            connection.settimeout(max(1.0, end - time.monotonic()))
            greeting = msgspec.msgpack.encode(msgspec.structs.replace(own, key=""))
            introduce(connection, own.key, greeting)
            refusal = receive(connection, Answer).refusal
            if not refusal:
                send(connection, Answer())
        except (OSError, EOFError) as error:
            if connection is not None:
                connection.close()
            if time.monotonic() > end:
                other = "rank 0" if own.role == "rank" else "the server"
                raise ModelLoadError(
                    f"[parallel] {other} must listen at {address[0]}:{address[1]} within "
                    f"{seconds:g} s; got {error}. Start it, or correct --master-addr and "
                    "--master-port."
                ) from error
            time.sleep(_RETRY_SECONDS)
            continue
        if refusal:
            connection.close()
            raise ConfigError(refusal)
        _keep_up(connection)
        return connection


def _keep_up(connection: socket.socket) -> None:
    """Have an end of the other side found out, also while something is on its way there."""
    keep_alive(connection)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_SECONDS)
    connection.settimeout(None)


def _forget_gone(found: dict[int, RankLink]) -> None:
    """Drop ranks that are gone again: others may come in their place."""
    ranks = {link.connection: rank for rank, link in found.items()}
    # They say nothing until they are told what they are to be.
    for connection in readable(ranks, 0):
        log.warning("[parallel] %s is gone again", found.pop(ranks[connection]))
        connection.close()


def _span(ranks: Collection[int]) -> str:
    return f"{min(ranks)} to {max(ranks)}"
