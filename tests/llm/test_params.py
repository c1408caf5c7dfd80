"""Settings completed for a model: what its tokenizer makes of bad words."""

from __future__ import annotations

from quire.core.sampling_params import SamplingParams
from quire.llm.params import complete_params
from quire.models.hub import resolve_model
from quire.text.tokenizer import load_tokenizer


def lengths(max_tokens: int | None) -> set[int]:
    tokenizer = load_tokenizer(resolve_model("quire-tiny"))
    params = SamplingParams(max_tokens=max_tokens, bad_words=["a", "1 2 3 4 5 6 7 8 9"])
    completed = complete_params(params, tokenizer, tokenizer.vocab_size, -1)
    return set(map(len, completed.bad_words_token_ids))


def test_bad_words_that_an_answer_has_no_room_for_went_to_the_engine():
    """Of four megabytes of them it was sent millions of ids, which no answer could reach."""
    assert max(lengths(None)) > 4 >= max(lengths(4)) > 0
