"""KV blocks in a store that several servers share, by Redis' protocol (Redis, Valkey).

The store evicts by its own rules (``maxmemory-policy allkeys-lru``). When it does not answer, it is
treated as empty for a while.
"""

from __future__ import annotations

import math
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from quire.core.errors import ConfigError
from quire.core.metrics import Samples
from quire.runner.blocks.tiers.sealed_block import (
    HEAD_BYTES,
    Bytes,
    DamagedBlockError,
    head_of,
    opened,
)
from quire.system.log import get_logger

if TYPE_CHECKING:
    from redis import Redis

log = get_logger(__name__)

T = TypeVar("T")

#: Seconds until the first byte of an answer, at most; its last byte may take up to twice as long.
ANSWER_SECONDS = 1.0
#: Seconds that the store is not asked after a failure.
REST_SECONDS = 5.0
#: Bytes of an answer besides a block, such as whether the store has each block of a prompt.
REST_BYTES = 2**20
_PASSWORD = re.compile(r"//[^@/]*@")


class SharedTier:
    """Blocks of one model in a store.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        find_fingerprint: Call that returns the model's fingerprint (32 bytes) on every machine; it
            may take a while.
        block_bytes: Bytes of each block.
        is_writable: Whether blocks are written; else they are only read.

    Raises:
        ConfigError: The URL is invalid, or the package ``redis`` is not installed.
    """

    label = "shared"
    byte_seconds = 1 / 300e6

    def __init__(
        self,
        url: str,
        find_fingerprint: Callable[[], bytes],
        block_bytes: int,
        *,
        is_writable: bool = True,
    ) -> None:
        self._shown = _PASSWORD.sub("//***@", url)
        # One client each: reading and writing threads do not wait for each other.
        most = HEAD_BYTES + block_bytes + REST_BYTES
        self._clients: list[Redis] = [create_client(url, most) for _ in range(2)]
        self._fingerprint: Future[bytes] = Future()
        self._begun = [math.inf] * len(self._clients)  # when each client began its present call
        self._is_closed = threading.Event()
        for target, arguments in ((self._prepare, [find_fingerprint]), (self._watch, [])):
            name = f"quire-kv-shared-{target.__name__.strip('_')}"
            threading.Thread(target=target, args=arguments, name=name, daemon=True).start()
        self._block_bytes = block_bytes
        self.is_writable = is_writable
        self._resumes = 0.0
        self.num_damaged = 0
        self.num_failures = 0

    def contains(self, block_hash: bytes) -> bool | None:
        """Return None, as the store has to be asked; False while it is not in use."""
        return None if self._is_in_use() else False

    def look_up(self, block_hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks in the store."""

        def ask(client: Any) -> list[int]:
            pipeline = client.pipeline(transaction=False)
            for block_hash in block_hashes:
                pipeline.exists(self._key(block_hash))
            answers: list[int] = pipeline.execute()
            return answers

        answers = self._call(0, ask) or []
        return next((i for i, answer in enumerate(answers) if not answer), len(answers))

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Do nothing: the store itself chooses the blocks that it evicts."""

    def read(self, block_hash: bytes) -> Bytes | None:
        """Return a block; one whose content does not match its key is removed."""
        # A longer value is not a block of ours.
        last = HEAD_BYTES + self._block_bytes
        found = self._call(0, lambda client: client.getrange(self._key(block_hash), 0, last))
        if not found or not isinstance(found, bytes):
            return None
        try:
            frame = np.frombuffer(found, np.uint8)
            return opened(frame, self._fingerprint.result(), block_hash, self._block_bytes)
        except DamagedBlockError as error:
            self.num_damaged += 1
            log.warning("[kv_tiers] a block of %s is not used: %s.", self._shown, error)
            if self.is_writable:
                self._call(0, lambda client: client.delete(self._key(block_hash)))
            return None

    def write(self, block_hash: bytes, data: Bytes) -> bool:
        """Put a block, unless the store has it."""
        wait([self._fingerprint])

        def put(client: Any) -> bool:
            key = self._key(block_hash)
            if client.exists(key):
                return True
            head = head_of(self._fingerprint.result(), block_hash, data)
            return bool(client.set(key, head + data.tobytes()))

        return bool(self._call(1, put))

    def clear(self) -> None:
        """Do nothing: other servers use the store."""

    def forget(self, block_hash: bytes) -> None:
        """Do nothing: other servers use the store."""

    def samples(self) -> Samples:
        """Return the number of damaged blocks, by metric stem."""
        return {'kv_offload_damaged_blocks{tier="shared"}': self.num_damaged}

    def describe(self) -> str:
        """Return the store's address and whether it answers as text, for people."""
        return f"shared {self._shown}: {'in use' if self._is_in_use() else 'not in use now'}"

    def close(self) -> None:
        """Close the connections."""
        self._is_closed.set()
        for client in self._clients:
            client.close()

    def _key(self, block_hash: bytes) -> str:
        return f"quire:kv:{self._fingerprint.result().hex()}:{block_hash.hex()}"

    def _prepare(self, find_fingerprint: Callable[[], bytes]) -> None:
        try:
            self._fingerprint.set_result(find_fingerprint())
        except Exception as error:  # without a fingerprint the store is not used; all else works
            log.warning("[kv_tiers] %s is not used: %r.", self._shown, error)
            self._fingerprint.set_exception(error)

    def _watch(self) -> None:
        """Cut off answers that arrive byte by byte, or never end: each byte alone is in time."""
        while not self._is_closed.wait(ANSWER_SECONDS):
            for client, begun in zip(self._clients, self._begun, strict=True):
                if time.monotonic() - begun > ANSWER_SECONDS:
                    client.connection_pool.disconnect()

    def _is_in_use(self) -> bool:
        name = self._fingerprint
        is_named = name.done() and name.exception() is None
        return is_named and time.monotonic() >= self._resumes

    def _call(self, number: int, ask: Callable[[Any], T]) -> T | None:
        """Return the store's answer; None when there is none in time."""
        if not self._is_in_use():
            return None
        self._begun[number] = time.monotonic()
        try:
            return ask(self._clients[number])
        except Exception as error:  # an unknown server's answer may fail in ways of the library
            self.num_failures += 1
            self._resumes = time.monotonic() + REST_SECONDS
            log.warning("[kv_tiers] %s is left alone for a while: %r.", self._shown, error)
            # The rest of this answer must not be read as the next one.
            self._clients[number].connection_pool.disconnect()
            return None
        finally:
            self._begun[number] = math.inf


class _BoundedSocket:
    """A connection that bounds the bytes of an answer, which the library reads whole."""

    def __init__(self, connection: socket.socket, most: int) -> None:
        self._connection, self._most = connection, most
        self._left = most

    def sendall(self, data: bytes) -> None:
        """Send a call, and allow the bytes of one more answer."""
        self._left = self._most
        self._connection.sendall(data)

    def recv(self, count: int) -> bytes:
        """Return a part of an answer."""
        data = self._connection.recv(count)
        self._take(len(data))
        return data

    def recv_into(self, buffer: bytearray) -> int:
        """Read like :meth:`recv`, for the library's faster reader."""
        count = self._connection.recv_into(buffer)
        self._take(count)
        return count

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ConnectionError(f"an answer has more than {self._most} bytes")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def _bounded(kind: Any, most: int) -> Any:
    """Return a subclass of a connection of the library whose answers are bounded."""

    class Bounded(kind):  # type: ignore[misc]
        def _connect(self) -> Any:
            return _BoundedSocket(super()._connect(), most)

    return Bounded


def create_client(url: str, most: int) -> Redis:
    """Return a client of a store, which connects when it is used.

    Args:
        url: Address of the store.
        most: Bytes of an answer, at most.

    Raises:
        ConfigError: The URL is invalid, or the package ``redis`` is not installed.
    """
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigError(
            "[config] --kv-offload-url needs the package redis; it is not installed. "
            "pip install quire[redis]."
        ) from None
    try:
        client: Redis = Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigError(
            "[config] --kv-offload-url must be redis://, rediss:// or unix://, as in "
            f"redis://localhost:6379/0; got {_PASSWORD.sub('//***@', url)!r:.80}: {error}."
        ) from None
    pool = client.connection_pool
    pool.connection_class = _bounded(pool.connection_class, most)
    return client
