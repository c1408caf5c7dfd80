"""``/score``, ``/rerank`` and ``/classify`` on the wire, as vLLM, Jina and Cohere have them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.errors import RequestError
from quire.protocol.generation import CacheSalt, Priority
from quire.protocol.openai.embedding import EmbeddingUsage
from quire.protocol.prompt_list import MAX_PROMPTS
from quire.protocol.request_body import RequestBody

#: Fields of others that would change the answer, with the values that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "truncate_prompt_tokens": (),
    "use_activation": (True,),
    "activation": (True,),
    "softmax": (True,),
    "max_chunks_per_doc": (),
    "max_tokens_per_doc": (),
    "rank_fields": (),
    "dimensions": (),
}


class ScoringRequest(RequestBody, kw_only=True):
    """Fields of all three."""

    refused = REFUSED

    add_special_tokens: bool | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None


class PairsRequest(ScoringRequest, kw_only=True):
    """Fields of those that score pairs; ``instruction`` goes into the template of the prompt."""

    instruction: str | None = None


class ScoreRequest(PairsRequest, kw_only=True):
    """Pairs of texts: one of ``text_1`` for each of ``text_2``, or one for all.

    ``queries`` and ``documents``, ``data_1`` and ``data_2`` are other names of the two.
    """

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs in their order.

        Raises:
            RequestError: Texts are missing, or their numbers do not fit.
        """
        first = _one_of(self, "text_1", "queries", "data_1")
        second = _one_of(self, "text_2", "documents", "data_2")
        if not 1 <= len(second) <= MAX_PROMPTS or len(first) not in (1, len(second)):
            raise RequestError(
                f"[text_2] must hold 1 to {MAX_PROMPTS} texts, and text_1 one or as many; got "
                f"{len(second)} and {len(first)}.",
                "text_2",
            )
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))


def _one_of(body: ScoreRequest, *names: str) -> list[str]:
    given = [name for name in names if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError(
            f"[{names[0]}] must be given once, as one of {', '.join(names)}; got "
            f"{', '.join(given) or 'none'}.",
            names[0],
        )
    value = getattr(body, given[0])
    return [value] if isinstance(value, str) else list(value)


class RerankRequest(PairsRequest, kw_only=True):
    """Texts to be sorted by how well they answer a query.

    Attributes:
        documents: Texts, or objects with ``text``.
        top_n: Number of documents that are returned; 0 or null: all.
        return_documents: Whether the documents' texts are returned.
    """

    query: str
    documents: list[str | dict[str, Any]]
    top_n: int | None = None
    return_documents: bool | None = None

    def texts(self) -> list[str]:
        """Return the documents.

        Raises:
            RequestError: None, too many, or one is no text.
        """
        if not 1 <= len(self.documents) <= MAX_PROMPTS:
            raise RequestError(
                f"[documents] must hold 1 to {MAX_PROMPTS} texts; got {len(self.documents)}.",
                "documents",
            )
        if self.top_n is not None and self.top_n < 0:
            raise RequestError(f"[top_n] must be 0 (all) or more; got {self.top_n}.", "top_n")
        texts = []
        for index, document in enumerate(self.documents):
            text = document.get("text") if isinstance(document, dict) else document
            if not isinstance(text, str):
                raise RequestError(
                    f"[documents[{index}]] must be a text, or an object with text.",
                    f"documents[{index}]",
                )
            texts.append(text)
        return texts


class ClassifyRequest(ScoringRequest, kw_only=True):
    """Texts to be classified: ``input`` is one or a list of them."""

    input: str | list[str]

    def texts(self) -> list[str]:
        """Return the texts.

        Raises:
            RequestError: None or too many.
        """
        texts = [self.input] if isinstance(self.input, str) else self.input
        if not 1 <= len(texts) <= MAX_PROMPTS:
            raise RequestError(
                f"[input] must hold 1 to {MAX_PROMPTS} texts; got {len(texts)}.", "input"
            )
        return texts


class Score(msgspec.Struct, kw_only=True):
    """One pair's score."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(msgspec.Struct, kw_only=True):
    """The scores, pairs in their order."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document's text."""

    text: str


class RankedResult(msgspec.Struct, kw_only=True):
    """One document's place among those that were sent, and its score."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankResponse(msgspec.Struct, kw_only=True):
    """The documents, best first."""

    id: str
    model: str
    results: list[RankedResult]
    usage: EmbeddingUsage


class Classification(msgspec.Struct, kw_only=True):
    """One text's classes; ``label`` is the likeliest."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(msgspec.Struct, kw_only=True):
    """The classes of all texts, in their order."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
