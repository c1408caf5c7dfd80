"""Bytes that each token contributes to decoded text, derived from a tokenizer's decoder.

Text is the UTF-8 reading of the pieces' concatenation. That holds for byte-level BPE, for
sentencepiece-like vocabularies and for WordPiece, and it is what lets text be produced token by
token.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Regex, decoders
from tokenizers import Tokenizer as Backend

from quire.text.tokenizers.text_steps import Replacing, Stripping, TextStep

#: What a WordPiece decoder that cleans up writes without the space before it.
_CLOSING = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Map the characters that stand for bytes in byte-level BPE (Radford et al. 2019) to them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()


def _one_mark_per_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("quire.one_mark_per_byte", _one_mark_per_byte)


class Pieces:
    """Bytes of the tokens of one tokenizer.

    Attributes:
        errors: Name of the error handler for bytes that are not UTF-8: one U+FFFD per ill-formed
            sequence (byte-level, as tokenizers) or per byte (byte fallback, as sentencepiece).
        special_ids: Tokens that are no text, such as end-of-sequence.

    Raises:
        ValueError: The decoder is of a kind whose text is no concatenation.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._cache: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._byte_level = False
        self._byte_fallback = False
        self._token_steps: list[Callable[[str], str]] = []
        self._text_steps: list[dict[str, Any]] = []
        self._dropped_at_start = ""
        self._joined = ""  # what a token of WordPiece begins with that goes on with a word
        self._cleans_up = False
        if backend.decoder is None:
            raise ValueError("no decoder, without which tokens cannot become text")
        decoder = json.loads(backend.decoder.__getstate__())
        fused = False
        for step in _flat(decoder):
            self._read(step, fused)
            fused = fused or step["type"] in ("Fuse", "ByteLevel")
        self.errors = "replace" if self._byte_level else "quire.one_mark_per_byte"

    def _read(self, step: dict[str, Any], fused: bool) -> None:
        kind = step["type"]
        if kind == "ByteLevel":
            self._byte_level = True
        elif kind == "ByteFallback":
            self._byte_fallback = True
        elif kind in ("Replace", "Strip") and fused and _is_plain(step):
            self._text_steps.append(step)
        elif kind in ("Replace", "Strip") and not fused:
            self._token_steps.append(_on_tokens(step))
        elif kind == "Metaspace" and not fused:
            mark = step["replacement"]
            self._token_steps.append(lambda token: token.replace(mark, " "))
            if step.get("prepend_scheme", "always") != "never":
                self._dropped_at_start = step["replacement"]
        elif kind == "WordPiece" and step["prefix"]:
            self._joined, self._cleans_up = step["prefix"], step["cleanup"]
        elif kind != "Fuse":
            raise ValueError(
                "a decoder that is neither byte-level, nor sentencepiece-like, nor WordPiece: "
                f"{json.dumps(step)}"
            )

    def text_steps(self, continues: bool) -> list[TextStep]:
        """Return what is done to the joined pieces of one text, in order.

        Args:
            continues: The text goes on after a prompt, so that nothing is cut from its start.
        """
        return [
            Replacing(step["pattern"]["String"], step["content"])
            if step["type"] == "Replace"
            else Stripping(step["content"], 0 if continues else step["start"], step["stop"])
            for step in self._text_steps
        ]

    def __contains__(self, token_id: int) -> bool:
        return self._token(token_id) is not None

    def __getitem__(self, token_id: int) -> bytes:
        """Return the token's bytes; empty for an id the vocabulary does not have."""
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._piece(self._token(token_id) or "")
        return piece

    def at_start(self, token_id: int) -> bytes:
        """Return the token's bytes as the first of a text: without the space that marks a word."""
        if self._joined:
            return self._clean(self._token(token_id) or "").encode()
        if not self._dropped_at_start:
            return self[token_id]
        return self._piece((self._token(token_id) or "").replace(self._dropped_at_start, ""))

    def _token(self, token_id: int) -> str | None:
        # The library raises on what does not fit its type.
        token: str | None = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        return token

    def _piece(self, token: str) -> bytes:
        if self._byte_level:
            token = self._changed(token)
            try:
                return bytes([_ALPHABET[character] for character in token])
            except KeyError:  # An added token, which is plain text.
                return token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self._joined and token:
            goes_on = token.startswith(self._joined)
            return self._clean(token[len(self._joined) :] if goes_on else f" {token}").encode()
        return self._changed(token).encode()

    def _changed(self, token: str) -> str:
        for step in self._token_steps:
            token = step(token)
        return token

    def _clean(self, text: str) -> str:
        for closing in _CLOSING if self._cleans_up else ():
            text = text.replace(closing, closing[1:])
        return text


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a decoder, those of sequences inside it, too."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flat(inner)]


def _is_plain(step: dict[str, Any]) -> bool:
    """Return whether a step can follow a text that arrives in pieces."""
    return step["type"] == "Strip" or bool(step["pattern"].get("String"))


def _on_tokens(step: dict[str, Any]) -> Callable[[str], str]:
    """Return what a step does to each token."""
    if step["type"] == "Strip":  # the library's own panics where it would cut a token twice
        cut = step["content"], step["start"], step["stop"]
        return lambda token: Stripping(*cut).add(token)
    pattern = step["pattern"]
    text = pattern["String"] if "String" in pattern else Regex(pattern["Regex"])
    decoder = decoders.Replace(text, step["content"])
    return lambda token: str(decoder.decode([token]))
