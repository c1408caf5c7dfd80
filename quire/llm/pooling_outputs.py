"""What ``LLM.embed``, ``encode`` and ``score`` give back, in the shapes of vLLM's Python API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """A prompt's vector: ``data`` (D,) float32, of length 1."""

    data: np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt's vector as Python floats: ``embedding`` has D of them, of length 1."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """D."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How alike two texts are: ``score``, the cosine of their vectors, -1 to 1."""

    score: float


@dataclass(frozen=True, slots=True)
class PooledRequestOutput(Generic[Result]):
    """The result for one prompt, or for a pair of them.

    Attributes:
        request_id: Of the prompt; of a pair, both joined by ``_``.
        outputs: The result.
        prompt_token_ids: As the model saw them; of a pair, one after the other.
        num_cached_tokens: Those found in the prefix cache.
        finished: Always True.
    """

    request_id: str
    outputs: Result
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


def pooled(output: RequestOutput) -> PooledRequestOutput[PoolingOutput]:
    """Return a finished request's vector."""
    assert output.embedding is not None, f"request {output.request_id} has no embedding"
    vector = np.frombuffer(output.embedding, "<f4").astype(np.float32)
    return PooledRequestOutput(
        output.request_id, PoolingOutput(vector), output.prompt_token_ids, output.num_cached_tokens
    )


def embedded(
    output: PooledRequestOutput[PoolingOutput],
) -> PooledRequestOutput[EmbeddingOutput]:
    """Return the same with the vector as Python floats."""
    return PooledRequestOutput(
        output.request_id,
        EmbeddingOutput(output.outputs.data.tolist()),
        output.prompt_token_ids,
        output.num_cached_tokens,
    )


def check_pairs(num_first: int, num_second: int) -> None:
    """Return when one text, or as many, can be compared with ``num_second`` others.

    Raises:
        RequestError: They cannot.
    """
    if num_first not in (1, num_second) or not num_second:
        raise RequestError(
            "[score] data_1 must be one text, or as many as data_2; got "
            f"{num_first} and {num_second}.",
            "data_1",
        )


def scores(
    first: Sequence[PooledRequestOutput[PoolingOutput]],
    second: Sequence[PooledRequestOutput[PoolingOutput]],
) -> list[PooledRequestOutput[ScoringOutput]]:
    """Return the cosine of each pair; a single ``first`` is paired with every ``second``."""
    firsts = list(first) * len(second) if len(first) == 1 else list(first)
    return [
        PooledRequestOutput(
            f"{one.request_id}_{other.request_id}",
            ScoringOutput(float(one.outputs.data.astype(float) @ other.outputs.data.astype(float))),
            [*one.prompt_token_ids, *other.prompt_token_ids],
            one.num_cached_tokens + other.num_cached_tokens,
        )
        for one, other in zip(firsts, second, strict=True)
    ]
