"""The TCP port where ranks find their driver, and engines their server, by number and key.

Messages are data alone, so that a peer that reaches the port can run nothing; a peer without the
key is refused.
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
from quire.core.errors import ConfigError, ModelLoadError
from quire.runner.ranks.handshake import decode, receive
from quire.system import env
from quire.system.channel import send
from quire.system.connections import (
    GONE_SECONDS,
    HandshakeListener,
    introduce,
    keep_alive,
    readable,
)
from quire.system.log import get_logger

log = get_logger(__name__)

Address = tuple[str, int]
Role = Literal["rank", "engine"]
#: Seconds that a rank waits for its driver, and a driver for its ranks.
MEETING_SECONDS = 600.0
_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.25
_OTHER_KEY = "[parallel] QUIRE_CLUSTER_KEY must be the same on all machines; got another."


class JoinRequest(msgspec.Struct, frozen=True):
    """Introduction of a rank or an engine.

    Attributes:
        rank: Number of the rank or engine.
        key: Key that only ranks of this engine have; it is proven and never sent.
        version: Version of the program.
        machine: Identifier of the machine, the same for all processes that can share memory.
        node: Name of the machine, for people.
        pid: Process id on that machine.
        role: Kind of the process: a rank or an engine.
        settings: Settings that must be the same on all machines.
    """

    rank: int
    key: str
    version: str
    machine: str
    node: str
    pid: int
    role: Role = "rank"
    settings: dict[str, str] = {}


class JoinReply(msgspec.Struct, frozen=True):
    """The driver's answer to a :class:`JoinRequest`: the reason of a refusal, or empty."""

    refusal: str = ""


@dataclass(frozen=True, slots=True)
class RankLink:
    """A rank or an engine that has connected.

    Attributes:
        connection: The connection to it.
        hello: The introduction that it has sent.
    """

    connection: socket.socket
    hello: JoinRequest

    def __str__(self) -> str:
        said = self.hello
        return f"{said.role} {said.rank} on {said.node} (process {said.pid})"


def machine_id() -> str:
    """Return an identifier that is the same for processes that can share memory.

    It is the kernel's number of this boot with the namespace of process ids, by which others are
    reached through ``/proc``.
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
) -> JoinRequest:
    """Return this process's introduction."""
    place = machine_id(), socket.gethostname(), os.getpid()
    return JoinRequest(rank, key, __version__, *place, role, dict(settings or {}))


class Rendezvous:
    """A driver's port, open until all ranks have connected, or a server's for its engines.

    Args:
        address: Address to listen at; port 0 is any.
        key: Key that peers must have.
        role: Role that peers must have.
        settings: Settings that peers must share, by name.

    Raises:
        ConfigError: The address cannot be listened at.
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
            self._listener = HandshakeListener(socket.create_server(address), key)
        except OSError as error:
            raise ConfigError(
                f"[parallel] --master-addr and --master-port must be of this machine and free; got "
                f"{address[0]}:{address[1]} ({error.strerror}). Give another."
            ) from error

    @property
    def address(self) -> Address:
        """The address that ranks connect to."""
        return self._listener.address

    def gather(
        self,
        ranks: Collection[int],
        check: Callable[[], None] = lambda: None,
        seconds: float = MEETING_SECONDS,
    ) -> list[RankLink]:
        """Return the ranks, in their order, once all have connected; the port is closed then.

        Args:
            ranks: Numbers of the ranks to wait for.
            check: Check that is called often, and raises where a rank will not connect.
            seconds: The longest wait.

        Raises:
            ModelLoadError: Some ranks have not connected.
            QuireError: The check failed.
        """
        found: dict[int, RankLink] = {}
        end = time.monotonic() + seconds
        try:
            while len(found) < len(ranks):
                check()
                if time.monotonic() > end:
                    missing = ", ".join(str(rank) for rank in sorted(ranks) if rank not in found)
                    raise ModelLoadError(
                        f"[parallel] all ranks must connect within {seconds:g} s; got none for "
                        f"{missing}. See the logs of the machines that they are to run on."
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
        """Accept ranks that connect within a moment, and drop those that are gone again.

        Args:
            ranks: Numbers of the ranks that may connect.
            found: Ranks that are connected, by number.
        """
        greetings = self._listener.greet(_RETRY_SECONDS)
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
        """Answer a peer's introduction; return None where it is refused."""
        try:
            connection.settimeout(_CONNECT_SECONDS)
            host = connection.getpeername()[0]
            if greeting is None:
                refusal = _OTHER_KEY
            else:
                said = decode(greeting, JoinRequest)
                refusal = self._refusal(said, ranks, found)
            send(connection, JoinReply(refusal))
            if not refusal:
                receive(connection, JoinReply)  # the peer may have given up meanwhile
                _keep_up(connection)
                return RankLink(connection, said)
            log.warning("[parallel] a peer at %s was refused: %s", host, refusal)
        except (OSError, EOFError) as error:
            log.warning("[parallel] a peer that connected is no %s: %s", self._role, error)
        connection.close()
        return None

    def _refusal(
        self, said: JoinRequest, ranks: Collection[int], found: dict[int, RankLink]
    ) -> str:
        if said.version != __version__:
            return (
                f"[parallel] all machines must run Quire {__version__}, as the first one does; got "
                f"{said.version} on {said.node}."
            )
        role = self._role
        if said.role != role:
            return (
                f"[parallel] only {role}s may connect here; got a {said.role} of {said.node}. Give "
                "all machines the same -tp, -pp and -dp."
            )
        if said.rank not in ranks:
            return f"[parallel] {role}s must be {_span(ranks)}; got {said.rank}."
        if said.rank in found:
            return f"[parallel] each {role} must connect once; got {found[said.rank]} already."
        return self._difference(said)

    def _difference(self, said: JoinRequest) -> str:
        """Return the refusal of a peer that does not share a setting; empty for none."""
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
        self._listener.close()


def join(
    address: Address,
    own: JoinRequest,
    seconds: float = MEETING_SECONDS,
    check: Callable[[], None] = lambda: None,
) -> socket.socket:
    """Connect to the driver or server as soon as it listens, and return the connection.

    Args:
        address: The address that it listens at.
        own: The introduction of this process.
        seconds: The longest wait.
        check: Check that is called often, and raises where this process is to try no longer.

    Raises:
        ModelLoadError: The driver or server does not listen.
        ConfigError: The driver or server has refused this process.
        QuireError: The check failed.
    """
    end = time.monotonic() + seconds
    while True:
        check()
        connection = None
        try:
            connection = socket.create_connection(address, timeout=_CONNECT_SECONDS)
            if connection.getsockname() == connection.getpeername():
                raise OSError("a port without a listener, connected to itself")
            connection.settimeout(max(1.0, end - time.monotonic()))
            greeting = msgspec.msgpack.encode(msgspec.structs.replace(own, key=""))
            introduce(connection, own.key, greeting)
            refusal = receive(connection, JoinReply).refusal
            if not refusal:
                send(connection, JoinReply())
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
    """Let the kernel notice the end of the other side, also while bytes are on their way there."""
    keep_alive(connection)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_SECONDS)
    connection.settimeout(None)


def _forget_gone(found: dict[int, RankLink]) -> None:
    """Drop ranks that are gone again: others may connect in their place."""
    ranks = {link.connection: rank for rank, link in found.items()}
    # Ranks send nothing until they get their settings.
    for connection in readable(ranks, 0):
        log.warning("[parallel] %s is gone again", found.pop(ranks[connection]))
        connection.close()


def _span(ranks: Collection[int]) -> str:
    return f"{min(ranks)} to {max(ranks)}"
