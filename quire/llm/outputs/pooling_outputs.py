"""Results of ``LLM.embed``, ``classify`` and others, in the shapes of vLLM's Python API."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from quire.core.errors import RequestError
from quire.core.model.pooling_config import ClassifierConfig
from quire.core.outputs import RequestOutput

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """``data``: a prompt's vector (D,), or the probabilities of classes (C,), float32."""

    data: np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt's vector as Python floats: ``embedding`` has D of them."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Length of the vector, D."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """``score``: the cosine of two texts' vectors, -1 to 1, or what a cross-encoder gives."""

    score: float


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """The classes of a prompt: ``probs`` has a probability for each, in the model's order."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Number of classes of the model."""
        return len(self.probs)


@dataclass(frozen=True, slots=True)
class PooledRequestOutput(Generic[Result]):
    """The result for one prompt, or for a pair of them.

    Attributes:
        request_id: Id of the prompt; of a pair, both joined by ``_``.
        outputs: The result.
        prompt_token_ids: The prompt's ids as the model got them; of a pair, one after the other.
        num_cached_tokens: Tokens that were found in the prefix cache.
        finished: A constant, True.
    """

    request_id: str
    outputs: Result
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


def pooled(output: RequestOutput, make: Callable[[bytes], Result]) -> PooledRequestOutput[Result]:
    """Return a finished request's result, made of its float32 values."""
    assert output.embedding is not None, f"request {output.request_id} has no embedding"
    made = make(output.embedding)
    return PooledRequestOutput(
        output.request_id, made, output.prompt_token_ids, output.num_cached_tokens
    )


def vector(values: bytes) -> PoolingOutput:
    """Return float32 values as array."""
    return PoolingOutput(np.frombuffer(values, "<f4").astype(np.float32))


def embedding(values: bytes) -> EmbeddingOutput:
    """Return float32 values as Python floats."""
    return EmbeddingOutput(array("f", values).tolist())


def class_probabilities(classifier: ClassifierConfig, logits: bytes) -> list[float]:
    """Return what a head's logits (C,), float32, mean, one number for each class."""
    found, activation = array("f", logits).tolist(), classifier.activation
    if activation == "softmax":
        parts = [math.exp(logit - max(found)) for logit in found]
        return [part / math.fsum(parts) for part in parts]
    if activation == "sigmoid":  # by the tanh, which overflows nowhere
        return [0.5 + 0.5 * math.tanh(0.5 * logit) for logit in found]
    return found


def cosine(first: bytes, second: bytes) -> float:
    """Return the cosine of two vectors (D,) float32; 0 where one has no length."""
    one, other = array("f", first), array("f", second)
    product, *squares = (
        math.fsum(a * b for a, b in zip(*pair, strict=True))
        for pair in ((one, other), (one, one), (other, other))
    )
    length = math.sqrt(math.prod(squares))
    return product / length if length else 0.0


def check_scores(classifier: ClassifierConfig) -> None:
    """Check that pairs of texts can be scored by a head of classes.

    Raises:
        RequestError: The head has several classes.
    """
    if len(classifier.labels) != 1:
        raise RequestError(
            "[model] a score needs a model with one class; got "
            f"{len(classifier.labels)}: {', '.join(classifier.labels):.80}. Ask for its classes.",
            "model",
        )


def check_pairs(num_first: int, num_second: int) -> None:
    """Check that ``num_first`` texts, one or as many, can be compared with ``num_second`` others.

    Raises:
        RequestError: The numbers do not match.
    """
    if num_first not in (1, num_second) or not num_second:
        raise RequestError(
            "[score] data_1 must be one text, or as many as data_2; got "
            f"{num_first} and {num_second}.",
            "data_1",
        )


def scores(
    first: Sequence[PooledRequestOutput[bytes]], second: Sequence[PooledRequestOutput[bytes]]
) -> list[PooledRequestOutput[ScoringOutput]]:
    """Return the cosine of each pair; a single ``first`` is paired with every ``second``."""
    firsts = list(first) * len(second) if len(first) == 1 else list(first)
    return [
        PooledRequestOutput(
            f"{one.request_id}_{other.request_id}",
            ScoringOutput(cosine(one.outputs, other.outputs)),
            [*one.prompt_token_ids, *other.prompt_token_ids],
            one.num_cached_tokens + other.num_cached_tokens,
        )
        for one, other in zip(firsts, second, strict=True)
    ]
