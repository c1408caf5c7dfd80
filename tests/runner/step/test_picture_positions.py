"""Positions of rows of pictures, and what they see, in steps of several requests."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.engine_request import EngineRequest, Picture
from quire.core.sampling_params import SamplingParams
from quire.core.step import NewRequest, ScheduledRequest
from quire.runner.step.picture_positions import grid_positions
from tests.runner.step.test_input_batch import make_batch


def new(request_id, length, *pictures):
    params, tokens = SamplingParams(), list(range(length))
    source = EngineRequest(request_id, tokens, params, pictures=pictures)
    blocks = list(range(1, 2 + length // 4))
    return NewRequest(request_id, tokens, length, params, 0, blocks, 0, source)


def part(request_id, start, count):
    return ScheduledRequest(request_id, start, count, [], False)


def picture(start, num_tokens, **more):
    return Picture(start, num_tokens, "key", b"", 1, 1, **more)


GRIDS = picture(3, 6, grid=(2, 3)), picture(11, 4, grid=(4, 1))
#: Of 3 tokens of text, a picture, 2 of text and another picture.
EXPECTED = [
    [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8, 8, 8, 8],
    [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8, 9, 10, 11],
    [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 8, 8, 8],
]


def test_positions_go_on_after_the_longer_edge():
    assert grid_positions(GRIDS).tolist() == EXPECTED
    assert grid_positions([picture(3, 6)]).shape == (3, 0)


@pytest.mark.parametrize("cuts", [[17], [3, 17], [5, 17], [9, 12, 17], list(range(1, 18))])
def test_steps_have_the_positions_of_their_rows(cuts):
    batch = make_batch(max_model_len=64)
    batch.add(new("a", 17, *GRIDS))
    batch.add(new("b", 20))
    want = np.array([row + [12, 13] for row in EXPECTED])
    found, start = [], 0
    for stop in cuts:
        step = batch.build([part("b", start, 2), part("a", start, stop - start)])
        assert step.positions[:, :2].tolist() == [[start, start + 1]] * 3
        assert step.last_seen is None
        found.append(step.positions[:, 2:])
        start = stop
    assert np.array_equal(np.concatenate(found, axis=1), want)
    assert batch.build([part("b", 0, 2)]).positions.shape == (2,)


def test_a_fork_and_what_follows_go_on_from_there():
    batch = make_batch(max_model_len=64)
    batch.add(new("a", 17, *GRIDS))
    batch.fork("a", "c")
    step = batch.build([part("a", 17, 1), part("c", 17, 2)])
    assert step.positions.tolist() == [[14, 14, 15]] * 3
    batch.table.remove("c")
    batch.add(new("d", 5))  # has the row now
    assert batch.build([part("d", 1, 2)]).positions.tolist() == [1, 2]


def test_rows_see_all_of_their_picture():
    batch = make_batch(max_model_len=64)
    batch.add(new("a", 20, picture(3, 4, sees_ahead=True), picture(9, 2, sees_ahead=True)))
    batch.add(new("b", 20))
    step = batch.build([part("b", 5, 2), part("a", 0, 12)])
    assert step.last_seen.tolist() == [5, 6, 0, 1, 2, 6, 6, 6, 6, 7, 8, 10, 10, 11]
    assert step.positions.tolist() == [5, 6, *range(12)]
    step = batch.build([part("a", 5, 3)])  # its first rows were found in the cache
    assert step.last_seen.tolist() == [6, 6, 7]
    assert batch.build([part("a", 12, 1), part("b", 7, 1)]).last_seen is None
    with pytest.raises(AssertionError, match="within a picture that ends at 7"):
        batch.build([part("a", 0, 5)])
