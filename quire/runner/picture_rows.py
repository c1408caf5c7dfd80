"""The rows of prompts that are pictures: encoded when a step needs the first of them, and kept.

A picture's rows depend on its content alone: whoever sends it again finds those that are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.core.metrics import Samples
from quire.core.request import Picture
from quire.core.step import ScheduledRequest
from quire.kernels.backend import Backend
from quire.models.vision.encoder import PictureEncoder
from quire.runner.input_batch import GivenRows

#: Memory for the rows of pictures that were encoded; those of a step are kept in any case.
KEPT_BYTES = 128 * 2**20

FloatArray = npt.NDArray[np.float32]


class PictureRows:
    """Pictures of the live requests, and rows of those encoded last.

    Args:
        encoder: Of the model; None where it reads text alone.
        backend: The encoder's.
        kept_bytes: Memory for rows.

    Attributes:
        num_encoded: Pictures encoded so far.
        num_found: Times that a request's picture had been encoded before.
    """

    def __init__(
        self, encoder: PictureEncoder | None, backend: Backend, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._encoder = encoder
        self._backend = backend
        self._kept_bytes = kept_bytes
        self._pictures: dict[str, tuple[Picture, ...]] = {}
        self._rows: OrderedDict[str, FloatArray] = OrderedDict()
        self._num_bytes = 0
        self.num_encoded = 0
        self.num_found = 0

    def set(self, request_id: str, pictures: tuple[Picture, ...]) -> None:
        """Take a request's pictures; none is no error."""
        self._pictures.pop(request_id, None)
        if pictures:
            assert self._encoder is not None, "pictures for a model of text"
            self._pictures[request_id] = pictures

    def remove(self, request_id: str) -> None:
        """Forget a request; what was encoded stays for others."""
        self._pictures.pop(request_id, None)

    def given(self, scheduled: Sequence[ScheduledRequest]) -> list[GivenRows]:
        """Return the rows of pictures in a step, encoding what is not known yet.

        Args:
            scheduled: The step's requests in order.
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
        """Return what was encoded and found, by metric stem."""
        return {
            "mm_cache_queries": self.num_encoded + self.num_found,
            "mm_cache_hits": self.num_found,
        }

    def _find(self, picture: Picture, *, begins: bool) -> FloatArray:
        rows = self._rows.get(picture.key)
        if rows is not None:
            self._rows.move_to_end(picture.key)
            self.num_found += begins
            return rows
        assert self._encoder is not None
        shape = picture.height, picture.width, 3
        pixels = np.frombuffer(picture.pixels, np.uint8).reshape(shape)
        encoded = self._backend.to_numpy(self._encoder.encode(pixels))
        rows = np.array(encoded, np.float32)
        assert len(rows) == picture.num_tokens, f"{len(rows)} rows for {picture.num_tokens} tokens"
        self._rows[picture.key] = rows
        self._num_bytes += rows.nbytes
        self.num_encoded += 1
        return rows

    def _drop(self) -> None:
        """Make room: what was unused for longest goes first."""
        while self._num_bytes > self._kept_bytes and len(self._rows) > 1:
            _, rows = self._rows.popitem(last=False)
            self._num_bytes -= rows.nbytes
