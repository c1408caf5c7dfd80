"""The tokens of draft models compared with those of the model, at start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError, QuireError
from quire.core.speculative_config import MethodName, SpeculativeMethod, refuse
from quire.speculative.drafters.vocabularies import VocabularyPair, pair_vocabularies
from quire.store.hub import resolve_model
from quire.system.log import get_logger
from quire.system.regular_files import TABLE_BYTES, read_regular

if TYPE_CHECKING:
    from quire.text.tokenizers.tokenizer import Tokenizer

log = get_logger(__name__)

_WAYS = {
    "intersection": "it draws among these",
    "text": "the model's tokens are made of the text that it writes",
}
#: What a tokenizer is read from; equal files make equal tokenizers.
FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")


def pair_draft_vocabularies(
    methods: tuple[SpeculativeMethod, ...], tokenizer_folder: Path
) -> dict[MethodName, VocabularyPair]:
    """Compare the tokens of draft models with those of the model.

    Two vocabularies are the same if each id in both means the same; ids beyond the other's
    vocabulary are never proposed.

    Args:
        methods: The engine's methods.
        tokenizer_folder: Folder of the model's tokenizer, or its GGUF file.

    Returns:
        Both vocabularies of each method whose draft has other tokens.

    Raises:
        ConfigError: A draft lacks special tokens, or has others where they must be the same.
        ModelLoadError: The model's own tokenizer cannot be read.
    """
    found: dict[MethodName, VocabularyPair] = {}
    for method in methods:
        if method.method == "draft_model" and method.model is not None:
            pair = _pair(method, method.model, tokenizer_folder)
            if pair is not None:
                found[method.method] = pair
    return found


def _pair(method: SpeculativeMethod, model: str, tokenizer_folder: Path) -> VocabularyPair | None:
    # Imported here: a start without a draft model does not wait for it.
    from quire.text.tokenizers.tokenizer import load_tokenizer

    try:
        folder = resolve_model(model, method.revision)
        if _same_files(tokenizer_folder, folder) and method.vocabulary in (None, "same"):
            return None
        draft = load_tokenizer(folder)
    except QuireError as error:
        raise ConfigError(
            "[config] --speculative-config must name a drafter that can be loaded; got "
            f"{model}: {error}"
        ) from error
    target = load_tokenizer(tokenizer_folder)
    if method.vocabulary in (None, "same"):
        difference = _difference(target, draft)
        if not difference:
            return None
        if method.vocabulary == "same":
            raise ConfigError(
                "[config] --speculative-config must name a draft model with the tokens of the "
                f"model; got {model}, {difference}. Take a draft of the same family, or leave "
                '"vocabulary" out.'
            )
        log.info("drafts by %s: %s", model, difference)
    if method.has_tree:
        name = "speculative_token_tree" if method.speculative_token_tree else "tree_width"
        refuse(name, "must be left out: a draft with other tokens proposes a chain", model)
    missing = _missing_special_tokens(target, draft)
    if missing and method.vocabulary is None:
        raise ConfigError(
            "[config] --speculative-config must name a draft model with the special tokens of the "
            f"model; got {model}, which lacks {', '.join(missing)}. Take a draft of the same "
            'family, or have it read them as text with "vocabulary": "text".'
        )
    pair = pair_vocabularies(target, draft, method.vocabulary)
    log.info(
        "drafts by %s: %s of the model's %s tokens are its own, too; %s",
        model,
        f"{len(pair.target_ids):,}",
        f"{target.vocab_size:,}",
        _WAYS[pair.way],
    )
    if missing:
        log.warning("drafts by %s: it reads %s as text", model, ", ".join(missing))
    return pair


def _same_files(first: Path, second: Path) -> bool:
    if first.is_file() or second.is_file():
        return first == second
    pairs = [(first / name, second / name) for name in FILES]
    found = [pair for pair in pairs if any(path.is_file() for path in pair)]
    return all(
        ours.is_file()
        and theirs.is_file()
        and read_regular(ours, TABLE_BYTES) == read_regular(theirs, TABLE_BYTES)
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


def _missing_special_tokens(target: Tokenizer, draft: Tokenizer) -> list[str]:
    """Return those that begin, end or divide the target's texts and are none of the draft's."""
    ends = {target.special_tokens.get(name) for name in ("bos_token", "eos_token")}
    templates = (
        "" if target.chat_template is None else "".join(target.chat_template.templates.values())
    )
    used = [
        text
        for token_id in range(target.vocab_size)
        if target.is_special(token_id)
        and ((text := target.token_text(token_id)) in ends or text in templates)
    ]
    return [text for text in used if draft.token_to_id(text) is None]
