"""A model's chat template and special tokens from its files; builds no tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from quire.checkpoints.config_fields import read_json
from quire.checkpoints.file_state import FileState, file_states
from quire.checkpoints.gguf.gguf_file import forget_gguf, open_gguf
from quire.checkpoints.gguf.gguf_keys import PREFIX
from quire.core.errors import ModelLoadError, QuireError
from quire.text.templates.chat_template import ChatTemplate, find_template
from quire.text.tokenizers.fim_tokens import GGUF_NAMES, FimTokens
from quire.text.tokenizers.gguf_tokenizer import read_templates

#: Files of a folder that may say something of them.
_NAMED = ("bos_token", "eos_token")
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, slots=True)
class FileTexts:
    """The facts that a model's files tell about its texts.

    Attributes:
        chat_template: None when the model has none.
        fim_tokens: Tokens by which the model fills in the middle of a text.
    """

    chat_template: ChatTemplate | None = None
    fim_tokens: FimTokens = FimTokens()


def read_file_texts(
    path: Path, chat_template: str | None = None, preset_template: str | None = None
) -> FileTexts:
    """Read a model's texts; files that have not changed since are not read again.

    Args:
        path: A folder or GGUF file.
        chat_template, preset_template: The same as in
            :func:`quire.text.tokenizers.tokenizer.load_tokenizer`.

    Raises:
        QuireError: A file cannot be read.
    """
    files = [path, *(path / name for name in _FILES)]
    files += [] if chat_template is None else [Path(chat_template)]
    return _read(path, chat_template, preset_template, file_states(files))


@lru_cache(256)
def _read(
    path: Path, override: str | None, preset: str | None, states: tuple[FileState, ...]
) -> FileTexts:
    try:
        config, vocabulary = _of_gguf(path) if path.is_file() else _of_folder(path)
        named = {name: text for name in _NAMED if (text := _text(config.get(name)))}
        template = find_template(path, config, override, named, preset)
    except QuireError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"[load] {path} must be a readable model; got {error}.") from error
    return FileTexts(template, FimTokens.find(vocabulary))


def _text(token: Any) -> str:
    """Return the text of a token as ``tokenizer_config.json`` has it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


@dataclass(slots=True)
class _Vocabulary:
    """See :class:`quire.text.tokenizers.fim_tokens.TokenLookup`."""

    ids: dict[str, int]
    special_tokens: dict[str, str] = field(default_factory=dict)

    def token_to_id(self, token: str | None) -> int | None:
        return None if token is None else self.ids.get(token)


def _of_gguf(path: Path) -> tuple[dict[str, Any], _Vocabulary]:
    file = open_gguf(path)
    forget_gguf()
    tokens = file.metadata.get(f"{PREFIX}tokens", [])
    vocabulary = _Vocabulary({str(token): index for index, token in enumerate(tokens)})
    for name in ("bos", "eos", *GGUF_NAMES.values()):
        index = file.metadata.get(f"{PREFIX}{name}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            vocabulary.special_tokens[f"{name}_token"] = str(tokens[index])
    return vocabulary.special_tokens | {"chat_template": read_templates(file)}, vocabulary


def _of_folder(folder: Path) -> tuple[dict[str, Any], _Vocabulary]:
    config, tokenizer = (
        read_json(folder / name) if (folder / name).exists() else {}
        for name in ("tokenizer_config.json", "tokenizer.json")
    )
    ids = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    for index, token in (config.get("added_tokens_decoder") or {}).items():
        ids.setdefault(token["content"], int(index))
    return config, _Vocabulary(ids)
