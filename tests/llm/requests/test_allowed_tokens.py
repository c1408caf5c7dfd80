"""Settings that leave no token are refused before a request runs."""

from __future__ import annotations

import pytest

from quire.core.errors import InvalidSamplingParamsError
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.llm.requests.allowed_tokens import first_tokens

EOS, VOCAB = 2, 11


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"allowed_token_ids": [5], "bad_words_token_ids": ((5,), (6, 7))}, "allowed_token_ids"),
        ({"allowed_token_ids": [5, 6], "logit_bias": {5: -100, 6: -120.0}}, "allowed_token_ids"),
        ({"allowed_token_ids": [EOS], "min_tokens": 1}, "allowed_token_ids"),
        (
            {"allowed_token_ids": [EOS, 5], "stop_token_ids": [5], "min_tokens": 1},
            "allowed_token_ids",
        ),
        ({"logit_bias": dict.fromkeys(range(VOCAB), float("-inf"))}, "logit_bias"),
        (
            {"logit_bias": {i: -100 for i in range(VOCAB) if i != EOS}, "min_tokens": 1},
            "logit_bias",
        ),
        ({"bad_words_token_ids": tuple((i,) for i in range(VOCAB))}, "bad_words_token_ids"),
    ],
)
def test_settings_that_leave_no_token_are_refused(settings, param):
    """Each ran, and ended as a failure of the engine."""
    with pytest.raises(InvalidSamplingParamsError, match="a token must be left") as caught:
        first_tokens(SamplingParams(**settings), [EOS], VOCAB)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, None),
        ({"allowed_token_ids": [5, EOS]}, {5, EOS}),
        ({"allowed_token_ids": [5, 10], "bad_words_token_ids": ((5,),)}, {10}),
        ({"allowed_token_ids": [5, 6], "bad_words_token_ids": ((5, 6),)}, {5, 6}),
        ({"allowed_token_ids": [5], "logit_bias": {5: -99.0}}, {5}),
        ({"bad_words_token_ids": ((0,), (10,))}, set(range(1, 10))),
    ],
)
def test_what_settings_leave_for_a_grammar(settings, left):
    constraint = StructuredOutputs(regex="a")
    bits = first_tokens(SamplingParams(structured_outputs=constraint, **settings), [EOS], VOCAB)
    found = {i for i in range(VOCAB) if bits and bits[i >> 3] >> (i & 7) & 1}
    assert found == (left or set()) and bool(bits) == (left is not None)
    assert first_tokens(SamplingParams(**settings), [EOS], VOCAB) == b""


def test_an_end_that_is_ignored_is_a_token():
    params = SamplingParams(allowed_token_ids=[EOS], min_tokens=3, ignore_eos=True)
    assert first_tokens(params, [EOS], VOCAB) == b""
