"""Settings completed for a model: what its tokenizer makes of bad words."""

from __future__ import annotations

import pytest

from quire.core.errors import InvalidSamplingParamsError
from quire.core.sampling_params import SamplingParams
from quire.llm.requests.params import complete_params, params_size
from quire.store.hub import resolve_model
from quire.text.offloading import INLINE_CHARACTERS
from quire.text.tokenizers.tokenizer import load_tokenizer


def lengths(max_tokens: int | None) -> set[int]:
    tokenizer = load_tokenizer(resolve_model("quire-tiny"))
    params = SamplingParams(max_tokens=max_tokens, bad_words=["a", "1 2 3 4 5 6 7 8 9"])
    completed = complete_params(params, tokenizer, tokenizer.vocab_size, -1)
    return set(map(len, completed.bad_words_token_ids))


def test_bad_words_that_an_answer_has_no_room_for_went_to_the_engine():
    """Of four megabytes of them it was sent millions of ids, which no answer could reach."""
    assert max(lengths(None)) > 4 >= max(lengths(4)) > 0


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "stop_token_ids"])
def test_long_lists_of_ids_are_read_off_the_loop(name):
    """150,000 ids held all requests up for a tenth of a second, once for each prompt."""
    tokenizer = load_tokenizer(resolve_model("quire-tiny"))
    ids = list(range(INLINE_CHARACTERS))
    params = SamplingParams(**{name: dict.fromkeys(ids, 1.0) if name == "logit_bias" else ids})
    assert params_size(params, tokenizer) == INLINE_CHARACTERS
    assert params_size(SamplingParams(), tokenizer) == 0


@pytest.mark.parametrize("wrong", [-1, 10**6])
@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "stop_token_ids"])
def test_ids_outside_of_the_vocabulary_are_named(name, wrong):
    tokenizer = load_tokenizer(resolve_model("quire-tiny"))
    ids = [5, wrong, 7]
    params = SamplingParams(**{name: dict.fromkeys(ids, 1.0) if name == "logit_bias" else ids})
    with pytest.raises(InvalidSamplingParamsError, match=rf"\[{name}\] .*; got {wrong}\."):
        complete_params(params, tokenizer, tokenizer.vocab_size, -1)
