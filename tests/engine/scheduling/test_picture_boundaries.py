"""Prompts are cut where no picture is whose rows see later ones."""

from __future__ import annotations

import pytest

from quire.core.engine_request import EngineRequest, Picture
from quire.core.sampling_params import SamplingParams
from quire.engine.scheduling.picture_boundaries import tokens_of_whole_pictures
from tests.engine.requests import request


def with_pictures(*places, sees_ahead=True):
    """Return a request of 100 tokens with pictures of ``(start, tokens)``."""
    made = request("a", list(range(100)))
    pictures = tuple(
        Picture(start, count, "key", b"", 1, 1, sees_ahead=sees_ahead) for start, count in places
    )
    made.source = EngineRequest("a", made.token_ids, SamplingParams(), pictures=pictures)
    return made


@pytest.mark.parametrize(
    ("start", "num_tokens", "most", "want"),
    [
        (0, 10, 64, 10),  # up to the picture
        (0, 11, 64, 10),  # not into it
        (0, 29, 64, 10),
        (0, 30, 64, 30),  # to its end
        (0, 35, 64, 30),  # and not into the next one
        (10, 5, 64, 20),  # it is the first: all of it
        (15, 5, 64, 15),  # its first rows were found
        (10, 5, 19, 0),  # no room: later
        (10, 5, 20, 20),
        (10, 0, 64, 0),
        (15, 0, 64, 0),
        (30, 1, 64, 8),
        (38, 62, 64, 62),
    ],
)
def test_where_a_prompt_is_cut(start, num_tokens, most, want):
    assert (
        tokens_of_whole_pictures(with_pictures((10, 20), (30, 8)), start, num_tokens, most) == want
    )


def test_other_pictures_are_cut():
    assert tokens_of_whole_pictures(with_pictures((10, 20), sees_ahead=False), 0, 11, 64) == 11
