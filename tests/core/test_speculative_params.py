"""What a request may ask of speculation, against the methods that a server has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from quire.core.errors import InvalidSamplingParamsError
from quire.core.sampling_params import SamplingParams
from quire.core.speculative_config import SpeculativeMethod
from quire.core.speculative_params import (
    OFF,
    ChosenSpeculation,
    SpeculativeParams,
    choose_speculation,
    read_speculative,
)

METHODS = (
    SpeculativeMethod(method="eagle3", num_speculative_tokens=4),
    SpeculativeMethod(method="ngram", num_speculative_tokens=8),
)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (None, ChosenSpeculation("eagle3", 4, "coupled")),
        (True, ChosenSpeculation("eagle3", 4, "coupled")),
        ({}, ChosenSpeculation("eagle3", 4, "coupled")),
        (False, None),
        ({"tokens": 0}, None),
        ({"method": "medusa", "num_speculative_tokens": 0}, None),
        ({"method": "ngram"}, ChosenSpeculation("ngram", 8, "coupled")),
        ({"method": "ngram", "tokens": 3}, ChosenSpeculation("ngram", 3, "coupled")),
        ({"num_speculative_tokens": 1}, ChosenSpeculation("eagle3", 1, "coupled")),
        ({"tokens": 4, "num_speculative_tokens": 4}, ChosenSpeculation("eagle3", 4, "coupled")),
        (SpeculativeParams(method="ngram"), ChosenSpeculation("ngram", 8, "coupled")),
        ({"acceptance": "coupled"}, ChosenSpeculation("eagle3", 4, "coupled")),
    ],
    ids=str,
)
def test_what_a_request_gets(asked: Any, chosen: ChosenSpeculation | None) -> None:
    params = SamplingParams(speculative=asked)
    assert choose_speculation(params.speculative, METHODS) == chosen
    crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(replace(params)), type=SamplingParams)
    assert crossed.speculative == params.speculative == read_speculative(asked)


@pytest.mark.parametrize("asked", [None, True, False, {}, {"tokens": 0}])
def test_what_a_server_without_speculation_takes(asked: Any) -> None:
    assert choose_speculation(asked, ()) is None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"method": "medusa"}, "[speculative.method] must be one of this server's: eagle3, ngram"),
        ({"tokens": 5}, "[speculative.num_speculative_tokens] must be at most 4 for eagle3"),
        ({"method": "ngram", "tokens": 9}, "must be at most 8 for ngram on this server; got 9"),
    ],
    ids=str,
)
def test_what_this_server_does_not_have(asked: dict[str, Any], words: str) -> None:
    params = SamplingParams(speculative=asked)
    with pytest.raises(InvalidSamplingParamsError) as caught:
        choose_speculation(params.speculative, METHODS)
    assert words in str(caught.value) and caught.value.param == "speculative"
    with pytest.raises(InvalidSamplingParamsError, match="needs a server that runs with --specul"):
        choose_speculation(params.speculative, ())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1, "[speculative] must be true, false or an object; got 1"),
        ("off", "[speculative] must be true, false or an object; got 'off'"),
        ([], "[speculative] must be true, false or an object"),
        ({"depth": 3}, "[speculative] may hold method, num_speculative_tokens, acceptance, tokens"),
        ({"tokens": 3, "num_speculative_tokens": 4}, "must be what num_speculative_tokens says"),
        ({"tokens": -1}, "must be a whole number of at least 0; got -1"),
        ({"tokens": 2.0}, "must be a whole number of at least 0; got 2.0"),
        ({"tokens": True}, "must be a whole number of at least 0; got True"),
        ({"method": "magic"}, "[speculative.method] must be one of ngram, draft_model"),
        ({"method": ["ngram"]}, "[speculative.method] must be one of ngram"),
        ({"acceptance": "typical"}, "must be one of coupled, rejection; got 'typical'"),
    ],
    ids=str,
)
def test_what_is_no_such_field(value: Any, words: str) -> None:
    with pytest.raises(InvalidSamplingParamsError) as caught:
        SamplingParams(speculative=value)
    assert words in str(caught.value) and caught.value.param == "speculative"


def test_off_is_one_value() -> None:
    assert SamplingParams(speculative=False).speculative is OFF and OFF.is_off
    assert not SpeculativeParams().is_off
