"""Sampling settings checked against their model, and completed from its tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from quire.core.errors import InvalidSamplingParamsError, RequestError
from quire.core.model.model_config import ModelConfig
from quire.core.quoting import quoted
from quire.core.sampling_params import SamplingParams
from quire.text.tokenizers.tokenizer import Tokenizer

#: What a word costs to tokenize besides its length.
_CHARACTERS_PER_WORD = 32


def complete_params(
    params: SamplingParams, tokenizer: Tokenizer, vocab_size: int, max_logprobs: int
) -> SamplingParams:
    """Return a checked copy of ``params``, with the token ids of its bad words.

    Args:
        params: The caller's settings.
        tokenizer: The model's tokenizer.
        vocab_size: Size of the vocabulary; token ids are below it.
        max_logprobs: Most alternatives per token; -1 is no limit.

    Raises:
        InvalidSamplingParamsError: The settings ask for more alternatives than allowed, ids outside
            the vocabulary, or stop strings without text to find them in.
    """
    params = replace(params)
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and max_logprobs >= 0 and not 0 <= value <= max_logprobs:
            raise InvalidSamplingParamsError(
                f"[{name}] must be at most {max_logprobs} (--max-logprobs); got {value}.", name
            )
    _check_ids("stop_token_ids", params.stop_token_ids or (), vocab_size)
    _check_ids("logprob_token_ids", params.logprob_token_ids, vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    _check_ids("logit_bias", params.logit_bias or (), vocab_size)
    for ids in params.bad_words_token_ids:
        _check_ids("bad_words_token_ids", ids, vocab_size)
    if params.stop and not params.detokenize:
        raise InvalidSamplingParamsError(
            "[stop] stop strings are found in text; got detokenize=False. Use stop_token_ids.",
            "stop",
        )
    if params.bad_words:
        found = _bad_words_ids(params.bad_words, tokenizer)
        if params.max_tokens is not None:  # an answer has no room for longer ones
            found = tuple(ids for ids in found if len(ids) <= params.max_tokens)
        params.bad_words_token_ids += found
    return params


def params_size(params: SamplingParams, tokenizer: Tokenizer) -> int:
    """Return what :func:`complete_params` reads counts as; see :meth:`Tokenizer.work_size`."""
    words = params.bad_words or ()
    size = sum(2 * len(word) + _CHARACTERS_PER_WORD for word in words)
    lists = (params.logit_bias, params.allowed_token_ids, params.stop_token_ids)
    num_ids = sum(len(ids or ()) for ids in lists)
    return num_ids + (tokenizer.work_size(size) if words else 0)


def check_task(params: SamplingParams, model: ModelConfig) -> None:
    """Check that a model can do what is asked of it.

    Raises:
        RequestError: The model generates no text, or has no such head.
    """
    kind, name = params.pooling, model.architecture
    if kind is None:
        check_generates(model)
    elif kind == "classify" and model.classifier is None:
        raise RequestError(
            f"[pooling] classify needs a model with a head of classes; got {name}.", "pooling"
        )
    elif kind == "pooler" and not model.pooler:
        raise RequestError(
            f"[pooling] pooler needs a checkpoint that has one; got {name} without. Take cls or "
            "mean.",
            "pooling",
        )
    elif kind == "cls" and not model.is_encoder:
        raise RequestError(
            "[pooling] cls needs an encoder: in other models the first token has seen nothing of "
            f"the text; got {name}. Take last or mean.",
            "pooling",
        )


def check_generates(model: ModelConfig) -> None:
    """Check that a model generates text.

    Raises:
        RequestError: The model generates no text.
    """
    if not model.generates:
        raise RequestError(
            f"[model] {model.architecture} generates no text: "
            f"{'it gives vectors' if model.has_head else 'without its head it gives vectors'}"
            f"{', scores and classes' if model.classifier else ' and scores'}. Ask /v1/embeddings, "
            "/score, /rerank or /classify; in Python LLM.embed, score or classify.",
            "model",
        )


def _check_ids(name: str, ids: Collection[int], vocab_size: int) -> None:
    for token_id in (min(ids), max(ids)) if ids else ():
        if not 0 <= token_id < vocab_size:
            raise InvalidSamplingParamsError(
                f"[{name}] token ids must be in 0..{vocab_size - 1}; got {token_id}.", name
            )


def _bad_words_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Tokenize each word as it reads at the start of a text and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if not word.strip() or not ids:
                raise InvalidSamplingParamsError(
                    f"[bad_words] must hold words; got {quoted(word)}.", "bad_words"
                )
            found[ids] = None
    return tuple(found)
