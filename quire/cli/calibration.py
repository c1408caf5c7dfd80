"""Text that commands compute inputs of, as samples of tokens; what is done with it is theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from quire.evaluation.documents import Document
    from quire.evaluation.scorer import LocalEncoder

SAMPLES, SAMPLE_LENGTH = 128, 512


def calibration_samples(
    folder: Path, command: str, given: Path | None, count: int | None, length: int | None
) -> tuple[list[np.ndarray], str]:
    """Return samples of a text, and where they are from.

    Args:
        folder: Of the model.
        command: For messages.
        given: Text, or .jsonl; None for what lies with the model, else the package's own.
        count: Most samples, None for :data:`SAMPLES`.
        length: Tokens of a sample, None for :data:`SAMPLE_LENGTH`.

    Raises:
        ConfigError: The text cannot be read, or cannot be tokenized.
    """
    from quire.evaluation.documents import read_documents
    from quire.evaluation.scorer import LocalEncoder, start_tokens
    from quire.models.config_reader import read_model_config
    from quire.quantizing.samples import choose_samples
    from quire.text.tokenizer import load_tokenizer

    flag = f"[{command}] --calibration"
    path = given or _built_in(folder)
    documents = read_documents(path, flag)
    if given is None and path.parent.parent != folder:
        # Another model's template may not take conversations.
        documents = [document for document in documents if document.text is not None]
        click.echo("quire: calibrated on the package's own text; --calibration FILE", err=True)
    encoder = LocalEncoder(load_tokenizer(folder), None)
    start = start_tokens(encoder)
    texts = [_tokens(document, encoder, start, flag) for document in documents]
    limit = read_model_config(folder).max_position_embeddings
    wanted = count or SAMPLES, length or SAMPLE_LENGTH
    samples = choose_samples(texts, wanted[0], min(wanted[1], limit), start)
    if len(samples) < wanted[0] or limit < wanted[1]:
        click.echo(
            f"quire: calibrated on {len(samples)} samples of {len(samples[0])} tokens, which is "
            "all that the text and the model's context give",
            err=True,
        )
    return samples, f"{len(samples)} samples of {len(samples[0])} tokens of {path.name}"


def _tokens(
    document: Document, encoder: LocalEncoder, start: tuple[int, ...], flag: str
) -> list[int]:
    from quire.core.errors import RequestError

    try:
        if document.messages is None:
            ids = encoder.encode(document.text or "", False)
        else:
            ids = encoder.encode_chat(document.messages, False)
    except RequestError as error:
        raise ConfigError(
            f"{flag} must hold texts that can be tokenized; got {error} in line {document.line}."
        ) from error
    return ids[len(start) :] if start and tuple(ids[: len(start)]) == start else ids


def _built_in(folder: Path) -> Path:
    """Return the text that lies with a model, else quire-tiny's."""
    from quire.models.hub import resolve_model

    places = (folder, resolve_model("quire-tiny"))
    paths = [place / "eval" / "calibration.jsonl" for place in places]
    return next((path for path in paths if path.is_file()), paths[-1])
