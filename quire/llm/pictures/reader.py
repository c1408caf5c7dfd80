"""``PictureReader``: a request's pictures read, decoded and resized, off the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec

import msgspec

from quire.core.config import ModelOptions
from quire.core.errors import CapacityError, ConfigError, RequestError
from quire.core.request import Picture
from quire.core.vision_config import VisionConfig
from quire.llm.pictures.sandbox import Decoded
from quire.llm.pictures.sources import PictureSource, SourceRules
from quire.llm.process.sandboxes import Sandbox, SandboxDied, Sandboxes
from quire.llm.turns import Turns

_DECODER = "quire.llm.pictures.sandbox:decode_in_sandbox"
#: Pictures that are read at once, and of one client: one that is slow to fetch holds up no others.
MAX_READ, MAX_READ_PER_CLIENT = 8, 4
#: Pictures decoded at once.
MAX_PROCESSES = 2
#: Of one client that wait; further ones are sent away.
MAX_WAITING_PER_CLIENT = 256
#: Wall-clock time that decoding may take; the largest picture takes about one.
DECODE_SECONDS = 20.0
#: Of the pixels of live requests: those that wait keep theirs.
MAX_LIVE_BYTES = 512 * 2**20


class PictureReader:
    """Reads the pictures of requests for one model.

    Args:
        vision: What pictures become.
        options: Say where pictures may be, and how many a prompt may have.

    Raises:
        ConfigError: A setting cannot be, or Pillow is missing.
    """

    def __init__(self, vision: VisionConfig, options: ModelOptions) -> None:
        if find_spec("PIL") is None:
            raise ConfigError(
                "[config] a model that reads pictures needs Pillow, which is not installed. "
                "pip install 'quire[vision]'"
            )
        self.vision = vision
        self._rules = SourceRules(options.allowed_media_domains, options.allowed_local_media_path)
        self._most = options.pictures_per_prompt()
        self._sandboxes = Sandboxes(self._start)
        # Reentrant: a picture may be collected while its thread holds it.
        self._lock = threading.RLock()
        self._num_bytes = 0
        self._turns = Turns(
            MAX_READ,
            MAX_READ_PER_CLIENT,
            MAX_WAITING_PER_CLIENT,
            f"[pictures] at most {MAX_WAITING_PER_CLIENT} pictures of one client may wait to be "
            "read. Try again.",
        )
        # A process lives as long as the thread that started it.
        self._readers = ThreadPoolExecutor(MAX_READ, thread_name_prefix="quire-pictures")
        self._decoders = ThreadPoolExecutor(MAX_PROCESSES, thread_name_prefix="quire-decoding")

    def check_count(self, sources: Sequence[PictureSource]) -> None:
        """Return when a prompt may have that many pictures.

        Raises:
            RequestError: It has more.
        """
        if self._most is not None and len(sources) > self._most:
            where = sources[self._most].where
            raise RequestError(
                f"[{where}] a prompt may have at most {self._most} pictures "
                f"(--limit-mm-per-prompt); got {len(sources)}.",
                where,
            )

    async def read(
        self,
        sources: Sequence[PictureSource],
        starts: Sequence[int],
        client_id: str = "",
        deadline: float | None = None,
    ) -> list[Picture]:
        """Return a prompt's pictures in order.

        Args:
            sources: Where they are; at least one.
            starts: The position of the first row of each.
            client_id: Clients take turns.
            deadline: On the monotonic clock, in seconds.

        Raises:
            RequestError: One cannot be read; the first of them.
            CapacityError: Too many of this client wait, requests have too many, or no process
                decodes.
        """
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(left):
                return [
                    await self._in_turn(source, start, client_id)
                    for source, start in zip(sources, starts, strict=True)
                ]
        except TimeoutError:
            where = sources[0].where
            raise RequestError(
                f"[{where}] pictures must be read within the request's time; they are not.", where
            ) from None

    async def _in_turn(self, source: PictureSource, start: int, client_id: str) -> Picture:
        await self._turns.take(client_id)
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._readers, self.read_now, source, start)
        reading.add_done_callback(partial(self._has_read, client_id))
        try:
            return await asyncio.shield(reading)  # a place is free when its thread is
        finally:
            # A refusal's traceback holds this frame, and all of the request through it: were the
            # refusal in it, they would stay until the collector of cycles comes.
            del reading

    def _has_read(self, client_id: str, reading: asyncio.Future[Picture]) -> None:
        if not reading.cancelled():
            reading.exception()  # for whoever waits still
        self._turns.give_back(client_id)

    def read_now(self, source: PictureSource, start: int) -> Picture:
        """Return a picture; blocks.

        Raises:
            RequestError: It cannot be read.
            CapacityError: No process decodes it, or requests have too many pictures already.
        """
        shape = self.vision.input
        num_bytes = 3 * shape.height * shape.width
        self._reserve(num_bytes, source.where)
        try:
            pixels = self._decode(source)
        except BaseException:
            self._give_back(num_bytes)
            raise
        # The sizes are the same for all pictures of a model: equal bytes are equal pictures.
        key = blake2b(pixels, digest_size=20).hexdigest()
        made = Picture(start, self.vision.num_tokens, key, pixels, shape.height, shape.width)
        weakref.finalize(made, self._give_back, num_bytes).atexit = False
        return made

    def _reserve(self, num_bytes: int, where: str) -> None:
        with self._lock:
            if self._num_bytes + num_bytes > MAX_LIVE_BYTES:
                raise CapacityError(
                    f"[{where}] the pictures of all requests together may have {MAX_LIVE_BYTES} "
                    "bytes, which they do. Try again.",
                    1.0,
                )
            self._num_bytes += num_bytes

    def _give_back(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes -= num_bytes

    def _decode(self, source: PictureSource) -> bytes:
        """Return a picture's pixels."""
        data = self._rules.read(source)
        where = source.where
        try:
            answer = self._decoders.submit(self._sandboxes.ask, data, DECODE_SECONDS).result()
        except SandboxDied as death:
            raise _refusal(where, f"be decoded; its decoder ended ({death})") from death
        except (OSError, EOFError, RuntimeError, CancelledError) as error:
            raise CapacityError(
                f"[{where}] no process to decode pictures: {error}.", 1.0
            ) from error
        if answer is None:
            raise _refusal(where, f"be decoded within {DECODE_SECONDS:g} s; it takes longer")
        decoded = msgspec.msgpack.decode(answer, type=Decoded)
        if decoded.refusal:
            raise _refusal(where, decoded.refusal)
        return decoded.pixels

    def close(self) -> None:
        """End the processes; what waits for one is refused."""
        for threads in (self._readers, self._decoders):
            threads.shutdown(wait=False, cancel_futures=True)
        self._sandboxes.close()

    def _start(self) -> Sandbox:
        first = msgspec.msgpack.encode((DECODE_SECONDS, self.vision.input))
        return Sandbox(_DECODER, first)


def _refusal(where: str, rule: str) -> RequestError:
    return RequestError(f"[{where}] a picture must {rule}.", where)
