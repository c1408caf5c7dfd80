"""Calibration text as samples of tokens; what is computed of them is not known here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.core.plurals import counted
from quire.evaluation.documents import Document, read_documents
from quire.evaluation.scorer import LocalEncoder, encode_document, start_tokens
from quire.models.config.config_reader import read_model_config
from quire.quantizing.inputs.samples import choose_samples
from quire.store.hub import resolve_model
from quire.text.tokenizers.tokenizer import load_tokenizer

SAMPLES, SAMPLE_LENGTH = 128, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The text to calibrate on, and how much of it.

    Attributes:
        text: A file of text or ``.jsonl``; texts; None for what lies with the model, else the
            package's own.
        count: Most samples, None for :data:`SAMPLES`.
        length: Tokens of a sample, None for :data:`SAMPLE_LENGTH`.
        where: Beginning of messages.
        encode: A function that makes tokens of texts; None for the model's own tokenizer.
    """

    text: Path | Sequence[str] | None = None
    count: int | None = None
    length: int | None = None
    where: str = "[quantize] --calibration"
    encode: Callable[[str], list[int]] | None = None


def calibration_samples(
    folder: Path, asked: Calibration, tell: Callable[[str], None]
) -> tuple[list[np.ndarray], str]:
    """Return samples of a text, and where they are from.

    Args:
        folder: The model's folder.
        asked: The text that was asked for.
        tell: A function called with each notice on what differs from the request.

    Raises:
        ConfigError: The text cannot be read, or cannot be tokenized.
    """
    documents, name = _documents(folder, asked, tell)
    encoder = LocalEncoder(load_tokenizer(folder), None)
    start = start_tokens(encoder)
    texts = [_tokens(document, encoder, start, asked) for document in documents]
    limit = read_model_config(folder).max_position_embeddings
    wanted = asked.count or SAMPLES, asked.length or SAMPLE_LENGTH
    samples = choose_samples(texts, wanted[0], min(wanted[1], limit), start)
    amount = f"{counted(len(samples), 'sample')} of {counted(len(samples[0]), 'token')}"
    if len(samples) < wanted[0] or limit < wanted[1]:
        tell(f"calibrated on {amount}, which is all that the text and the model's context give")
    return samples, f"{amount} of {name}"


def _documents(
    folder: Path, asked: Calibration, tell: Callable[[str], None]
) -> tuple[list[Document], str]:
    """Return texts and conversations, and what they are called."""
    if asked.text is not None and not isinstance(asked.text, Path):
        return [Document(line, text) for line, text in enumerate(asked.text, 1)], "texts given"
    path = asked.text or _built_in(folder)
    documents = read_documents(path, asked.where)
    if asked.text is None and path.parent.parent != folder:
        # Another model's template may not take conversations.
        documents = [document for document in documents if document.text is not None]
        tell("calibrated on the package's own text; --calibration FILE")
    return documents, path.name


def _tokens(
    document: Document, encoder: LocalEncoder, start: tuple[int, ...], asked: Calibration
) -> list[int]:
    ids = encode_document(document, encoder, asked.where, encode=asked.encode)
    return ids[len(start) :] if start and tuple(ids[: len(start)]) == start else ids


def _built_in(folder: Path) -> Path:
    """Return the text that lies with a model, else quire-tiny's."""
    places = (folder, resolve_model("quire-tiny"))
    paths = [place / "eval" / "calibration.jsonl" for place in places]
    return next((path for path in paths if path.is_file()), paths[-1])
