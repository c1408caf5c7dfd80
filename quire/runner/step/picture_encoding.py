"""Rows of prompts that are pictures: encoded slice by slice before a step needs them, and kept.

A picture's rows depend on its content alone: requests that send it again use the kept rows.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.engine_request import Picture
from quire.core.metrics import Samples
from quire.core.step import ScheduledRequest
from quire.kernels.backend import Array, Backend
from quire.models.vision.encoder import BATCH_PATCHES, PictureEncoder
from quire.models.vision.slices import Slices, finish
from quire.runner.step.input_batch import GivenRows
from quire.system.log import get_logger

log = get_logger(__name__)

#: The next slice is expected to take as long as the longest of the last ones, which counts less by
#: this factor with each slice.
STILL_EXPECTED = 0.9

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoding:
    """Pictures that are being encoded, and the slices that are left."""

    pictures: Sequence[Picture]
    slices: Slices[list[Array]]


class PictureRows:
    """Pictures of the live requests, and rows of those encoded last.

    It is :class:`quire.engine.gates.picture_gate.Pictures`. Pictures that cannot be encoded
    together are encoded one after another; one that cannot be encoded alone fails the step that is
    to compute it, at once. Rows that are missing when a step computes them are encoded there.

    Args:
        encoder: The model's encoder.
        backend: The encoder's backend.
        kept_bytes: Bytes of kept rows, at most; rows of a step are kept in any case.

    Attributes:
        num_encoded: Number of pictures encoded so far.
        num_found: Number of requests' pictures that had been encoded before.
    """

    def __init__(self, encoder: PictureEncoder, backend: Backend, kept_bytes: int) -> None:
        self._encoder = encoder
        self._backend = backend
        self._kept_bytes = kept_bytes
        self._pictures: dict[str, tuple[Picture, ...]] = {}
        self._rows: OrderedDict[str, FloatArray] = OrderedDict()
        self._num_bytes = 0
        self._wanted: dict[str, Picture] = {}
        self._encoding: Encoding | None = None
        self._slice_seconds = 0.0
        self._failed: dict[str, Exception] = {}  # reasons, of pictures that cannot be encoded
        self._alone: set[str] = set()  # pictures that could not be encoded together
        self._unused: set[str] = set()  # pictures that are encoded, and no step had them yet
        self.num_encoded = 0
        self.num_found = 0

    def set(self, request_id: str, pictures: tuple[Picture, ...]) -> None:
        """Set a request's pictures; there may be none."""
        self._pictures.pop(request_id, None)
        if pictures:
            self._pictures[request_id] = pictures

    def remove(self, request_id: str) -> None:
        """Forget a request; encoded rows stay for others."""
        self._pictures.pop(request_id, None)

    def is_ready(self, picture: Picture) -> bool:
        """Return whether a step may compute a picture's rows at once; see the protocol."""
        return picture.key in self._rows or picture.key in self._failed

    def want(self, requests: Sequence[Sequence[Picture]]) -> None:
        """Set the pictures that are needed now; see the protocol."""
        num_bytes, row_bytes = 0, 4 * self._encoder.width
        self._wanted = {}
        for pictures in requests:
            new = {p.key: p for p in pictures if p.key not in self._wanted}
            num_bytes += sum(picture.num_tokens for picture in new.values()) * row_bytes
            if num_bytes > self._kept_bytes and self._wanted:
                break
            self._wanted |= new
        self._failed = {key: e for key, e in self._failed.items() if key in self._wanted}
        self._alone.intersection_update(self._wanted)
        encoding = self._encoding
        if encoding and not any(picture.key in self._wanted for picture in encoding.pictures):
            self._encoding = None

    def encode(self, seconds: float) -> None:
        """Encode wanted pictures; see the protocol."""
        begin = last = time.perf_counter()
        while last == begin or last + self._slice_seconds <= begin + seconds:
            if not self._advance():
                return
            now = time.perf_counter()
            # A slice that was disturbed is no reason to stop after each of the next ones.
            took = min(now - last, seconds / 2)
            self._slice_seconds = max(took, STILL_EXPECTED * self._slice_seconds)
            last = now

    def given(self, scheduled: Sequence[ScheduledRequest]) -> list[GivenRows]:
        """Return the rows of pictures in a step.

        Args:
            scheduled: The step's requests, in order.
        """
        if not self._pictures:
            return []
        parts = []
        for index, request in enumerate(scheduled):
            start = request.num_computed_tokens
            stop = start + request.num_scheduled_tokens
            for picture in self._pictures.get(request.request_id, ()):
                first = max(start, picture.start)
                last = min(stop, picture.start + picture.num_tokens)
                if first < last:
                    rows = self._find(picture, begins=first == picture.start)
                    part = rows[first - picture.start : last - picture.start]
                    parts.append(GivenRows(index, first - start, part))
        self._drop()
        return parts

    def samples(self) -> Samples:
        """Return the numbers of pictures encoded and found, by metric stem."""
        return {
            "mm_cache_queries": self.num_encoded + self.num_found,
            "mm_cache_hits": self.num_found,
        }

    def _advance(self) -> bool:
        """Compute a slice; return whether there was one."""
        if self._encoding is None:
            self._encoding = self._next_encoding()
        if self._encoding is None:
            return False
        pictures = self._encoding.pictures
        try:
            next(self._encoding.slices)
        except StopIteration as end:
            for picture, encoded in zip(pictures, end.value, strict=True):
                self._keep(picture, encoded)
            self._encoding = None
            self._drop()
        except Exception as error:
            if len(pictures) == 1:
                self._failed[pictures[0].key] = error
            else:
                log.exception("[pictures] %d pictures could not be encoded together", len(pictures))
                self._alone.update(picture.key for picture in pictures)
            self._encoding = None
        return True

    def _next_encoding(self) -> Encoding | None:
        """Begin with the first wanted pictures without rows, as many as can be encoded together."""
        pictures: list[Picture] = []
        patch, num_patches = self._encoder.config.patch_size**2, 0
        for picture in self._wanted.values():
            if not self.is_ready(picture):
                num_patches += picture.height * picture.width // patch
                is_alone = picture.key in self._alone
                if pictures and (is_alone or num_patches > BATCH_PATCHES):
                    break
                pictures.append(picture)
                if is_alone:
                    break
        return Encoding(pictures, self._encode(pictures)) if pictures else None

    def _encode(self, pictures: Sequence[Picture]) -> Slices[list[Array]]:
        tilings = [picture.tiling for picture in pictures]
        return self._encoder.encode(list(map(_pixels, pictures)), tilings)

    def _find(self, picture: Picture, *, begins: bool) -> FloatArray:
        if picture.key in self._failed:
            raise self._failed[picture.key].with_traceback(None)
        if picture.key not in self._rows:
            (encoded,) = finish(self._encode([picture]))
            self._keep(picture, encoded)
        self._rows.move_to_end(picture.key)
        if begins:
            self.num_found += picture.key not in self._unused
            self._unused.discard(picture.key)
        return self._rows[picture.key]

    def _keep(self, picture: Picture, encoded: Array) -> None:
        rows = np.array(self._backend.to_numpy(encoded), np.float32)
        assert len(rows) == picture.num_tokens, f"{len(rows)} rows for {picture.num_tokens} tokens"
        self._rows[picture.key] = rows
        self._num_bytes += rows.nbytes
        self._unused.add(picture.key)
        self.num_encoded += 1

    def _drop(self) -> None:
        """Evict rows of pictures that no request needs now, the least recently used first."""
        for key in list(self._rows):
            if self._num_bytes <= self._kept_bytes or len(self._rows) == 1:
                return
            if key not in self._wanted:
                self._num_bytes -= self._rows.pop(key).nbytes
                self._unused.discard(key)


class NoPictures:
    """The pictures of a model that reads text alone: no request has any."""

    def set(self, request_id: str, pictures: tuple[Picture, ...]) -> None:
        """Check that a request has no pictures."""
        assert not pictures, "pictures for a model of text"

    def remove(self, request_id: str) -> None:
        """Do nothing: no request has pictures."""

    def given(self, scheduled: Sequence[ScheduledRequest]) -> list[GivenRows]:
        """Return no rows."""
        return []

    def samples(self) -> Samples:
        """Return the numbers of pictures encoded and found, by metric stem."""
        return {"mm_cache_queries": 0, "mm_cache_hits": 0}


def _pixels(picture: Picture) -> npt.NDArray[np.uint8]:
    shape = picture.height, picture.width, 3
    return np.frombuffer(picture.pixels, np.uint8).reshape(shape)
