"""The tokens by which a model fills in the middle of a text; not what stands between them.

Source: llama.cpp, whose keys of GGUF files and whose list of spellings these are
(https://github.com/ggml-org/llama.cpp, llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol

#: How models of several families spell them; a GGUF file may name others.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "prefix": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "suffix": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "middle": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "padding": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"),
    "repository": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "separator": ("<|file_sep|>",),
}  # fmt: skip
#: In the names of GGUF's keys, ``tokenizer.ggml.fim_pre_token_id``.
GGUF_NAMES = {
    "prefix": "fim_pre",
    "suffix": "fim_suf",
    "middle": "fim_mid",
    "padding": "fim_pad",
    "repository": "fim_rep",
    "separator": "fim_sep",
}
#: Without these nothing can be filled in.
NEEDED = ("prefix", "suffix", "middle")


class TokenLookup(Protocol):
    """A vocabulary in which tokens are looked up.

    Attributes:
        special_tokens: Named special tokens by name, such as ``fim_pre_token``, as text.
    """

    special_tokens: dict[str, str]

    def token_to_id(self, token: str | None) -> int | None:
        """Return the id of a token's text, or None when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Ids of the tokens; None for tokens that a model does not have.

    Attributes:
        prefix, suffix, middle: Tokens before the parts of the text.
        padding: The token that fills batches in training.
        repository, separator: Tokens before the name of a repository, and of each of its files.
    """

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    padding: int | None = None
    repository: int | None = None
    separator: int | None = None

    @classmethod
    def find(cls, vocabulary: TokenLookup) -> FimTokens:
        """Look the tokens up, those that the model's file names first."""
        found = {}
        for kind, spellings in SPELLINGS.items():
            named = vocabulary.special_tokens.get(f"{GGUF_NAMES[kind]}_token")
            ids = (vocabulary.token_to_id(text) for text in (named, *spellings))
            found[kind] = next((i for i in ids if i is not None), None)
        return cls(**found)

    @property
    def missing(self) -> list[str]:
        """Kinds of tokens that are needed and that the model does not have."""
        return [kind for kind in NEEDED if getattr(self, kind) is None]

    @property
    def ends(self) -> list[int]:
        """Tokens that can only follow the middle: there the text ends."""
        return [i for i in (self.padding, self.repository, self.separator) if i is not None]

    @property
    def all(self) -> list[int]:
        """All fill-in-the-middle tokens that the model has."""
        ids = (getattr(self, field.name) for field in fields(self))
        return [i for i in ids if i is not None]
