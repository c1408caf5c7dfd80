"""``PictureReader``: a request's pictures read, decoded and resized, off the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec

import msgspec

from quire.core.built_types import built
from quire.core.engine_request import Picture
from quire.core.errors import CapacityError, ConfigError, RequestError
from quire.core.model.picture_tiling import Tiling
from quire.core.model.vision_config import PictureShape, VisionConfig
from quire.llm.pictures.decoding import Pixels, Prepared
from quire.llm.pictures.picture_sandbox import Decoded
from quire.llm.pictures.placing import (
    crops_text,
    cut_at_marks,
    introduced,
    join,
    least_written,
    tiles_text,
)
from quire.llm.pictures.sources import PictureSource, SourceRules
from quire.settings.config import ModelOptions
from quire.system.fair_slots import FairSlots
from quire.system.sandboxes import Sandbox, SandboxDied, Sandboxes
from quire.text.tokenizers.tokenizer import Tokenizer

_DECODER = "quire.llm.pictures.picture_sandbox:decode_in_sandbox"
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


@dataclass(frozen=True, slots=True)
class PicturePart:
    """Rows that the encoder makes together, of a tile or of the whole picture.

    Attributes:
        first_row: Index of the first of them among the picture's tokens.
        num_rows: Number of rows.
        key: A text that identifies their content.
        pixels: The encoder's input.
        tiling: The way in which its tiles become one picture; None where it has none.
    """

    first_row: int
    num_rows: int
    key: str
    pixels: Pixels
    tiling: Tiling | None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ReadPicture:
    """A picture that does not have a place in a prompt yet.

    Attributes:
        written: The picture's tokens, which take the place of its mark.
        parts: The parts in order.
        is_introduced: Whether the text before it announces its crops.
    """

    written: list[int]
    parts: list[PicturePart]
    is_introduced: bool = False


class PictureReader:
    """Reads the pictures of requests for one model.

    Args:
        vision: The settings that say what pictures become.
        options: The settings that say where pictures may be, and how many a prompt may have.
        tokenizer: The model's tokenizer; None where pictures are written by ids alone.

    Raises:
        ConfigError: A setting is impossible, or Pillow is missing.
    """

    def __init__(
        self,
        vision: VisionConfig,
        options: ModelOptions,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if find_spec("PIL") is None:
            raise ConfigError(
                "[config] a model that reads pictures needs Pillow, which is not installed. "
                "pip install 'quire[vision]'"
            )
        self.vision = vision
        self._tokenizer = tokenizer
        self._rules = SourceRules(options.allowed_media_domains, options.allowed_local_media_path)
        self._most = options.pictures_per_prompt()
        self._sandboxes = Sandboxes(self._start)
        # Reentrant: a picture may be collected while its thread holds it.
        self._lock = threading.RLock()
        self._num_bytes = 0
        self._turns = FairSlots(
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
        """Check that a prompt may have that many pictures.

        Raises:
            RequestError: The prompt has more than the limit.
        """
        if self._most is not None and len(sources) > self._most:
            where = sources[self._most].where
            raise RequestError(
                f"[{where}] the number of pictures of a prompt must be at most {self._most} "
                f"(--limit-mm-per-prompt); got {len(sources)}.",
                where,
            )

    def least_prompt(self, token_ids: Sequence[int], num_pictures: int) -> list[int]:
        """Return a prompt as it would be if its pictures were as small as they can be.

        Raises:
            RequestError: The prompt does not have that many marks.
        """
        parts = cut_at_marks(token_ids, num_pictures, self.vision)
        return join(parts, [least_written(self.vision)] * num_pictures)[0]

    def place(
        self, token_ids: Sequence[int], read: Sequence[ReadPicture]
    ) -> tuple[list[int], list[Picture]]:
        """Return a prompt with the pictures' tokens in place of their marks, and the pictures.

        Args:
            token_ids: The prompt's token ids, with one mark for each picture.
            read: Pictures in order; at least one.

        Raises:
            RequestError: The prompt does not have that many marks.
        """
        parts = cut_at_marks(token_ids, len(read), self.vision)
        for number, one in enumerate(read):
            if one.is_introduced:
                parts[number] = introduced(parts[number], self._known_tokenizer, self.vision)
        made, starts = join(parts, [one.written for one in read])
        return made, [
            self._placed(part, start + part.first_row)
            for one, start in zip(read, starts, strict=True)
            for part in one.parts
        ]

    async def read(
        self,
        sources: Sequence[PictureSource],
        client_id: str = "",
        deadline: float | None = None,
    ) -> list[ReadPicture]:
        """Return a prompt's pictures in order.

        Args:
            sources: The sources of the pictures; at least one.
            client_id: The client's id; clients take turns.
            deadline: A time on the monotonic clock, in seconds.

        Raises:
            RequestError: A picture cannot be read; the error is that of the first.
            CapacityError: The client's waiting pictures, or those of all requests, reach a limit;
                or no process decodes.
            EngineDeadError: The reader was closed.
        """
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(left):
                return [await self._in_turn(one, len(sources), client_id) for one in sources]
        except TimeoutError:
            where = sources[0].where
            raise RequestError(
                f"[{where}] pictures must be read within the request's time; they are not.", where
            ) from None

    async def _in_turn(
        self, source: PictureSource, num_pictures: int, client_id: str
    ) -> ReadPicture:
        work = partial(self.read_now, source, num_pictures)
        return await self._turns.run(client_id, self._readers, work)

    def read_now(self, source: PictureSource, num_pictures: int = 1) -> ReadPicture:
        """Return a picture; blocks.

        Args:
            source: The source of the picture.
            num_pictures: Number of pictures in its prompt.

        Raises:
            RequestError: The picture cannot be read.
            CapacityError: No process decodes it, or requests have too many pictures already.
        """
        shape = self.vision.input.among(num_pictures)
        most = shape.most_bytes
        self._reserve(most, source.where)
        try:
            prepared = self._decode(source, shape)
        except BaseException:
            self._give_back(most)
            raise
        num_bytes = sum(len(pixels.data) for pixels in prepared.parts)
        self._give_back(most - num_bytes)
        made = self._written(prepared, shape)
        weakref.finalize(made, self._give_back, num_bytes).atexit = False
        return made

    def _written(self, prepared: Prepared, shape: PictureShape) -> ReadPicture:
        writing = self.vision.writing
        tiling = self.vision.tiling(
            (prepared.rows, prepared.columns), prepared.height, prepared.width
        )
        if tiling is not None:
            num_rows = [tiling.num_rows]
        else:
            num_rows = [self.vision.num_tokens(one.height, one.width) for one in prepared.parts]
        num_crops = len(prepared.parts) - 1 if shape.cut == "crops" else 0
        if writing.names_tiles or num_crops:
            text = self._text_of([writing.row_id]) * num_rows[0]
            if writing.names_tiles:
                text = tiles_text(prepared.rows, prepared.columns, text)
            else:
                around = map(self._text_of, (writing.before, writing.after))
                text = crops_text(num_crops, text.join(around), writing)
            written = self._known_tokenizer.encode(text, False)
        else:
            written = [*writing.before, *[writing.row_id] * num_rows[0], *writing.after]
        parts, place = [], 0
        for pixels, count in zip(prepared.parts, num_rows, strict=True):
            place = written.index(writing.row_id, place)
            # Pictures of other sizes have other keys, though their bytes be equal.
            key = blake2b(f"{pixels.height}x{pixels.width} {tiling} ".encode(), digest_size=20)
            key.update(pixels.data)
            parts.append(PicturePart(place, count, key.hexdigest(), pixels, tiling))
            place += count
        return ReadPicture(written, parts, num_crops > 0)

    def _text_of(self, token_ids: Sequence[int]) -> str:
        texts = self._known_tokenizer.convert_ids_to_tokens(token_ids)
        assert None not in texts, f"tokens {token_ids} have no text"
        return "".join(map(str, texts))

    @property
    def _known_tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "pictures are written as text"
        return self._tokenizer

    def _placed(self, part: PicturePart, start: int) -> Picture:
        pixels = part.pixels
        made = Picture(
            start=start,
            num_tokens=part.num_rows,
            key=part.key,
            pixels=pixels.data,
            height=pixels.height,
            width=pixels.width,
            grid=self.vision.grid(pixels.height, pixels.width),
            sees_ahead=self.vision.sees_ahead,
            tiling=part.tiling,
        )
        with self._lock:  # until the other one is forgotten, which is soon, both count
            self._num_bytes += len(pixels.data)
        weakref.finalize(made, self._give_back, len(pixels.data)).atexit = False
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

    def _decode(self, source: PictureSource, shape: PictureShape) -> Prepared:
        """Return a picture's pixels."""
        message = msgspec.msgpack.encode((shape, self._rules.read(source)))
        where = source.where
        try:
            answer = self._decoders.submit(self._sandboxes.ask, message, DECODE_SECONDS).result()
        except SandboxDied as death:
            raise _refusal(where, f"be decoded; its decoder ended ({death})") from death
        except (OSError, EOFError, RuntimeError, CancelledError) as error:
            raise CapacityError(
                f"[{where}] no process to decode pictures: {error}.", 1.0
            ) from error
        if answer is None:
            raise _refusal(where, f"be decoded within {DECODE_SECONDS:g} s; it takes longer")
        decoded = msgspec.msgpack.decode(answer, type=built(Decoded))
        if decoded.prepared is None:
            raise _refusal(where, decoded.refusal)
        return decoded.prepared

    def close(self) -> None:
        """End the processes; what waits for one is refused."""
        for threads in (self._readers, self._decoders):
            threads.shutdown(wait=False, cancel_futures=True)
        self._sandboxes.close()

    def _start(self) -> Sandbox:
        return Sandbox(_DECODER, msgspec.msgpack.encode(DECODE_SECONDS))


def _refusal(where: str, rule: str) -> RequestError:
    return RequestError(f"[{where}] a picture must {rule}.", where)
