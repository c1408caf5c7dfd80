"""Ports of a receiver that senders of blocks connect to, and its answers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from zlib import crc32

from quire.core.errors import ConfigError
from quire.runner.blocks.transfer.inbox import Inbox, Sender
from quire.runner.blocks.transfer.transfer_messages import (
    BlockOffer,
    Blocks,
    Knock,
    ReceiverHello,
    Release,
    Rows,
    receive,
    receive_parts,
)
from quire.settings.kv_transfer import KVTransfer
from quire.system.channel import accept_own_user, send
from quire.system.connections import GREETING_SECONDS, HandshakeListener, keep_alive
from quire.system.log import get_logger

log = get_logger(__name__)


class _Connections:
    """Connections of senders, with a thread for each."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._connections: set[socket.socket] = set()

    def begin(self, connection: socket.socket, *, brings: bool) -> None:
        """Answer a sender until it is gone."""
        arguments = (connection, Sender(brings))
        thread = threading.Thread(target=self._serve, args=arguments, daemon=True)
        self._connections.add(connection)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            log.warning("[kv] a sender is refused: %s", error)
            self._connections.discard(connection)
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            _end(connection)

    def _serve(self, connection: socket.socket, sender: Sender) -> None:
        inbox = self._inbox
        try:
            if not sender.brings:
                send(connection, inbox.hello, inbox.memory.descriptor)
            while True:
                message, _ = receive(connection)
                if isinstance(message, BlockOffer):
                    send(connection, Rows(inbox.reserve(message.block_hashes, sender)))
                elif isinstance(message, Release):
                    inbox.give_up(message.block_hashes, sender)
                elif isinstance(message, Blocks) and sender.brings:
                    _take(connection, inbox, message, sender)
        except (EOFError, OSError) as error:
            log.debug("[kv] a sender has left: %r", error)
        finally:
            inbox.give_up(list(sender.offered), sender)
            self._connections.discard(connection)
            connection.close()


def _take(connection: socket.socket, inbox: Inbox, message: Blocks, sender: Sender) -> None:
    """Receive blocks into their rows."""
    start = time.perf_counter()
    hashes = message.block_hashes
    if len(message.checksums) != len(hashes):
        raise OSError("a checksum must come with each block")
    rows = [inbox.memory.rows[row].data for row in inbox.rows_of(hashes, sender)]
    receive_parts(connection, rows)
    sums = [crc32(row, crc32(block_hash)) for block_hash, row in zip(hashes, rows, strict=True)]
    whole = [own == sent for own, sent in zip(sums, message.checksums, strict=True)]
    if not all(whole):
        log.warning("[kv] damaged blocks are computed here: %d", whole.count(False))
    inbox.brought(hashes, sender, whole, time.perf_counter() - start)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # the sender is gone already
        connection.shutdown(socket.SHUT_RDWR)


class UnixPort:
    """A port for senders of this machine and this user.

    Args:
        inbox: The inbox that they send to.
        name: Name of the socket in the kernel's abstract namespace, without a file.
    """

    def __init__(self, inbox: Inbox, name: str) -> None:
        self._connections = _Connections(inbox)
        self._is_closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + name)
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, name="quire-kv-inbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        _end(self._listener)  # which ends the wait
        self._thread.join()
        self._listener.close()
        self._connections.close()

    def _accept(self) -> None:
        while not self._is_closed:
            connection = accept_own_user(self._listener)
            if connection is not None:
                self._connections.begin(connection, brings=False)


class TcpPort:
    """A port for senders of other machines, which must have the key and the same model.

    Args:
        inbox: The inbox that they send to.
        address: Address to listen at.
        knock: Introduction that senders must give.

    Raises:
        ConfigError: The address cannot be listened at.
    """

    def __init__(self, inbox: Inbox, address: tuple[str, int], knock: Knock) -> None:
        self._hello, self._fingerprint = inbox.hello, knock.fingerprint
        self._connections = _Connections(inbox)
        self._is_closed = False
        try:
            self._listener = socket.create_server(address)
        except OSError as error:
            raise ConfigError(
                "[kv] the port for blocks of prompts must be of this machine and free; got "
                f"{address[0]}:{address[1]} ({error.strerror}). Give another --master-port, after "
                "which those of the engines are, or --master-addr."
            ) from error
        self._handshakes = HandshakeListener(self._listener, knock.key)
        self._thread = threading.Thread(target=self._greet, name="quire-kv-port", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        _end(self._listener)  # which ends the wait
        self._thread.join()
        self._handshakes.close()
        self._connections.close()

    def _greet(self) -> None:
        while not self._is_closed:
            for connection, greeting in self._handshakes.greet(GREETING_SECONDS):
                try:
                    self._meet(connection, greeting)
                except Exception as error:  # else no other sender could connect
                    log.warning("[kv] a peer that connected is no engine: %s", error)
                    connection.close()

    def _meet(self, connection: socket.socket, fingerprint: bytes | None) -> None:
        refusal = self._refusal(fingerprint)
        send(connection, ReceiverHello(self._hello.num_rows, self._hello.block_bytes, refusal))
        if refusal:
            raise OSError(refusal)
        keep_alive(connection)
        self._connections.begin(connection, brings=True)

    def _refusal(self, fingerprint: bytes | None) -> str:
        if fingerprint is None:
            return "it is of another server"
        if fingerprint != self._fingerprint:
            return "it has another checkpoint, other settings or another processor"
        return ""


def open_inbox(
    num_blocks: int, block_bytes: int, transfer: KVTransfer, fingerprint: bytes = b""
) -> Inbox:
    """Return an inbox with a port that senders can connect to.

    Args:
        num_blocks: Blocks that the inbox holds, at most, those on their way included.
        block_bytes: Bytes of each block.
        transfer: Addresses that it listens at, and its senders.
        fingerprint: (32 bytes), hash of all that blocks depend on besides their tokens, the same on
            every machine.

    Raises:
        ConfigError: The port cannot be listened at.
    """
    inbox, (address,) = Inbox(num_blocks, block_bytes), transfer.addresses
    if address.port:
        knock = Knock(transfer.key, fingerprint)
        inbox.ports.append(TcpPort(inbox, (address.host, address.port), knock))
    if address.name:
        inbox.ports.append(UnixPort(inbox, address.name))
    return inbox
