"""Bounds of each sampling setting; what they do is tested with the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.errors import InvalidSamplingParamsError
from quire.core.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-320),
        ("repetition_penalty", 1e7),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("stop", ["x", ""]),
        ("allowed_token_ids", []),
        ("seed", 2**63),
        ("max_tokens", 2.5),
        ("max_tokens", "5"),
        ("temperature", "hot"),
        ("logprobs", True),  # OpenAI's chat API has it so
        ("seed", 1.5),
        ("ignore_eos", "no"),
        ("stop", b"ab"),
        ("stop", 5),
        ("bad_words", [5]),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", 5),
        ("allowed_token_ids", "ab"),
        ("bad_words_token_ids", [[1, "a"]]),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", [1]),
        ("structured_outputs", {"type": "object"}),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidSamplingParamsError, match=rf"\[{name}\] must") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="ab").stop == SamplingParams(stop=["ab"]).stop == ("ab",)
    assert SamplingParams(bad_words="ab").bad_words == ("ab",)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(seed=np.int64(5), temperature=np.float32(0.5), top_k=np.int32(3))
    assert (type(params.seed), params.seed, params.top_k) == (int, 5, 3)


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_texts_to_look_for_are_bounded(name: str) -> None:
    SamplingParams(**{name: ["a"] * 1024})
    with pytest.raises(InvalidSamplingParamsError, match=r"at most 1024 texts; got '1025 of them'"):
        SamplingParams(**{name: ["a"] * 1025})
