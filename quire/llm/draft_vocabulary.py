"""Whether a draft model means the same tokens as the model it proposes for, seen at start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError, QuireError
from quire.core.speculative_config import SpeculativeMethod
from quire.models.hub import resolve_model

if TYPE_CHECKING:
    from quire.text.tokenizer import Tokenizer

#: What a tokenizer is read from; equal files make equal tokenizers.
FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")


def check_draft_vocabularies(
    methods: tuple[SpeculativeMethod, ...], tokenizer_folder: Path
) -> None:
    """Refuse draft models with other tokens.

    An id that both have must mean the same; ids beyond the other's vocabulary are never proposed.

    Args:
        methods: Of the engine.
        tokenizer_folder: Of the model's tokenizer, or its GGUF file.

    Raises:
        ConfigError: A draft has other tokens; the message names one.
        ModelLoadError: The model's own tokenizer cannot be read.
    """
    # Imported here: a start without a draft model does not wait for it.
    from quire.text.tokenizer import load_tokenizer

    for method in methods:
        if method.method != "draft_model" or method.model is None:
            continue
        try:
            folder = resolve_model(method.model, method.revision)
            if _same_files(tokenizer_folder, folder):
                continue
            draft = load_tokenizer(folder)
        except QuireError as error:
            raise ConfigError(
                "[config] --speculative-config must name a drafter that can be loaded; got "
                f"{method.model}: {error}"
            ) from error
        difference = _difference(load_tokenizer(tokenizer_folder), draft)
        if difference:
            raise ConfigError(
                "[config] --speculative-config must name a draft model with the tokens of the "
                f"model; got {method.model}, {difference}. Take a draft of the same family."
            )


def _same_files(first: Path, second: Path) -> bool:
    if first.is_file() or second.is_file():
        return first == second
    pairs = [(first / name, second / name) for name in FILES]
    found = [pair for pair in pairs if any(path.is_file() for path in pair)]
    return all(
        ours.is_file() and theirs.is_file() and ours.read_bytes() == theirs.read_bytes()
        for ours, theirs in found
    )


def _difference(target: Tokenizer, draft: Tokenizer) -> str:
    """Say where two tokenizers differ; empty where they do not."""
    common = range(min(target.vocab_size, draft.vocab_size))
    other = [i for i in common if target.token_bytes(i) != draft.token_bytes(i)]
    if other:
        ours, theirs = (t.token_bytes(other[0]).decode(errors="replace") for t in (target, draft))
        return (
            f"where {len(other):,} of {len(common):,} ids are other tokens, such as {other[0]}: "
            f"{theirs!r} in place of {ours!r}"
        )
    return ""
