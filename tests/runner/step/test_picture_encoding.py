"""Rows of pictures: encoded together slice by slice, kept within their memory, given to steps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from quire.core.engine_request import Picture
from quire.core.step import ScheduledRequest
from quire.kernels.registry import create_backend
from quire.models.vision.encoder import BATCH_PATCHES
from quire.runner.step import picture_encoding as picture_rows
from quire.runner.step.picture_encoding import PictureRows

NUM_ROWS, WIDTH = 4, 8
PICTURE_BYTES = NUM_ROWS * WIDTH * 4


class Encoder:
    """Makes rows of a picture's first value; three slices a batch.

    Attributes:
        batches: First values of the pictures of each.
        bad: A first value that cannot be encoded.
    """

    width = WIDTH
    config = SimpleNamespace(patch_size=1)

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.bad: int | None = None

    def encode(self, pictures, tilings):
        values = [int(pixels[0, 0, 0]) for pixels in pictures]
        self.batches.append(values)
        for _ in range(3):
            yield
        if self.bad in values:
            raise ValueError("a bad picture")
        return [np.full((NUM_ROWS, WIDTH), value, np.float32) for value in values]


@pytest.fixture
def encoder():
    return Encoder()


@pytest.fixture
def rows(encoder):
    """Has memory for two pictures."""
    return PictureRows(encoder, create_backend("cpu", threads=1), kept_bytes=2 * PICTURE_BYTES)


def picture(value, start=0, num_tokens=NUM_ROWS):
    return Picture(start, num_tokens, str(value), bytes([value] * 12), 2, 2)


def scheduled(request_id, start, count):
    return ScheduledRequest(request_id, start, count, [], False)


def test_a_step_has_the_rows_it_computes(rows, encoder):
    rows.set("a", tuple(picture(n, 10 * n) for n in range(3)))
    assert rows.given([scheduled("a", 4, 3)]) == []
    (part,) = rows.given([scheduled("b", 0, 9), scheduled("a", 0, 3)])
    assert (part.index, part.first, part.embeddings.shape) == (1, 0, (3, WIDTH))
    first, second = rows.given([scheduled("a", 3, 9)])
    assert (first.first, len(first.embeddings)) == (0, 1)
    assert (second.first, len(second.embeddings)) == (7, 2)
    assert encoder.batches == [[0], [1]]
    rows.remove("a")
    assert rows.given([scheduled("a", 0, 20)]) == []


def test_those_unused_for_longest_go_first(rows, encoder):
    rows.set("a", tuple(picture(n, 10 * n) for n in range(3)))
    for start, count in ((0, 14), (20, 4), (10, 4), (0, 4)):
        rows.given([scheduled("a", start, count)])
    assert encoder.batches == [[0], [1], [2], [0]]


def test_pictures_of_several_requests_are_encoded_together(rows, encoder):
    wanted = [[picture(1)], [picture(2), picture(1)]]
    rows.want(wanted)
    rows.encode(seconds=0)
    assert encoder.batches == [[1, 2]] and not rows.is_ready(picture(1))
    for _ in range(3):
        rows.encode(seconds=0)
    assert rows.is_ready(picture(1)) and rows.is_ready(picture(2))
    assert rows.samples() == {"mm_cache_queries": 2, "mm_cache_hits": 0}
    for request_id in "ab":
        rows.set(request_id, (picture(1),))
        rows.given([scheduled(request_id, 0, 4)])
    assert rows.samples() == {"mm_cache_queries": 3, "mm_cache_hits": 1}


def test_a_batch_is_bounded(encoder):
    most = PictureRows(encoder, create_backend("cpu", threads=1), kept_bytes=0)
    pixels = bytes(3 * BATCH_PATCHES // 2)
    big = Picture(0, NUM_ROWS, "", pixels, BATCH_PATCHES // 2, 1)
    most.want([[replace(big, key=str(number)) for number in range(5)]])
    most.encode(seconds=0)
    assert encoder.batches == [[0, 0]]


def test_what_is_wanted_stays_and_what_does_not_fit_waits(rows):
    first, second = [picture(1), picture(2), picture(3)], [picture(4)]
    rows.want([first, second])
    rows.encode(seconds=1)
    assert all(map(rows.is_ready, first)) and not rows.is_ready(second[0])
    rows.want([second])
    rows.encode(seconds=1)
    assert rows.is_ready(second[0]) and sum(map(rows.is_ready, first)) == 1


def test_pictures_that_no_request_wants_any_more_are_given_up(rows, encoder):
    rows.want([[picture(1)]])
    rows.encode(seconds=0)
    rows.want([[picture(2)]])
    rows.encode(seconds=1)
    assert encoder.batches == [[1], [2]] and not rows.is_ready(picture(1))


def test_a_picture_that_cannot_be_encoded_fails_alone_and_at_once_in_a_step(rows, encoder):
    encoder.bad = 1
    rows.want([[picture(1)], [picture(2)]])
    rows.encode(seconds=1)
    assert rows.is_ready(picture(1)) and rows.is_ready(picture(2))
    assert encoder.batches == [[1, 2], [1], [2]]
    for value in (1, 2):
        rows.set(str(value), (picture(value),))
    (part,) = rows.given([scheduled("2", 0, 4)])
    assert part.embeddings.min() == 2
    for _ in range(2):  # steps that fail are tried again in halves
        with pytest.raises(ValueError, match="a bad picture"):
            rows.given([scheduled("1", 0, 4)])
    assert encoder.batches == [[1, 2], [1], [2]]


def test_slices_are_taken_for_as_long_as_others_may_wait(monkeypatch):
    """Every tenth slice takes a hundred times as long as others: a busy machine's."""
    now = 0.0

    class Slow:
        width = WIDTH
        config = SimpleNamespace(patch_size=1)

        def encode(self, pictures, tilings):
            nonlocal now
            for number in range(200):
                now += 0.1 if number % 10 == 9 else 0.001
                yield
            return [np.zeros((NUM_ROWS, WIDTH), np.float32) for _ in pictures]

    monkeypatch.setattr(picture_rows.time, "perf_counter", lambda: now)
    made = PictureRows(Slow(), create_backend("cpu", threads=1), kept_bytes=0)
    made.want([[picture(1)]])
    took = []
    while not made.is_ready(picture(1)):
        begin = now
        made.encode(seconds=0.02)
        took.append(now - begin)
    assert max(seconds for seconds in took if seconds < 0.1) <= 0.02
    assert max(took) < 0.02 + 0.1 and len(took) < 60
