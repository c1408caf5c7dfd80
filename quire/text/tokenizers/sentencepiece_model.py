"""Reads sentencepiece's ``tokenizer.model`` and builds an equal tokenizer, without sentencepiece.

The file is a protocol buffer of pieces with scores. BPE pieces become a vocabulary with merges, so
one implementation (the ``tokenizers`` library) encodes for every kind of checkpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from quire.text.tokenizers.tokenizer_rules import charsmap_growth, check_growth

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2


@dataclass(slots=True)
class SentencePieceModel:
    """The content of a ``tokenizer.model``; an id is a position in the three lists.

    Attributes:
        pieces, scores, types: Text, score (higher merges first) and kind of each piece.
        algorithm: :data:`UNIGRAM` or :data:`BPE`.
        charsmap: Normalisation rules, compiled; empty for identity.
        add_dummy_prefix: A space is put before the text.
        remove_extra_whitespaces: Runs of spaces become one, outer ones vanish.
    """

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True

    @property
    def unknown_id(self) -> int:
        """Id of the unknown piece; every model has one."""
        return self.types.index(UNKNOWN)


def parse_model(data: bytes) -> SentencePieceModel:
    """Read the bytes of a ``tokenizer.model``.

    Raises:
        ValueError: The bytes are not such a file.

    Source: sentencepiece_model.proto (field numbers), protobuf encoding guide (wire types).
    """
    model = SentencePieceModel()
    try:
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(_message(value)))
                model.pieces.append(_message(piece[1]).decode())
                model.scores.append(struct.unpack("<f", _message(piece.get(2, bytes(4))))[0])
                model.types.append(_number(piece.get(3, NORMAL)))
            elif number == 2:
                trainer = dict(_fields(_message(value)))
                model.algorithm = _number(trainer.get(3, UNIGRAM))
                model.byte_fallback = bool(trainer.get(35, 0))
            elif number == 3:
                rules = dict(_fields(_message(value)))
                model.charsmap = _message(rules.get(2, b""))
                model.add_dummy_prefix = bool(rules.get(3, 1))
                model.remove_extra_whitespaces = bool(rules.get(4, 1))
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise ValueError(f"not a sentencepiece model ({error})") from error
    if UNKNOWN not in model.types:
        raise ValueError("not a sentencepiece model (no unknown piece)")
    if model.algorithm not in (UNIGRAM, BPE):
        raise ValueError(f"sentencepiece algorithm must be BPE or unigram; got {model.algorithm}")
    return model


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of one message: varints as int, all else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire_type == 2:
            size, at = _varint(data, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"wire type {wire_type} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"cut off at byte {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"number too long at byte {at}")


def _message(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes belong")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number belongs")
    return value


def build_tokenizer(model: SentencePieceModel, *, legacy: bool = True) -> Tokenizer:
    """Build the tokenizer that a sentencepiece model describes.

    Args:
        legacy: Whether each stretch of text between special tokens is encoded as sentencepiece
            encodes a text, dummy prefix included. False is what transformers calls so: only the
            whole text gets the prefix, and only when no space is there.
    """
    unknown = model.pieces[model.unknown_id]
    vocabulary = {piece: index for index, piece in enumerate(model.pieces)}
    if model.algorithm == BPE:
        algorithm: models.Model = models.BPE(
            vocab=vocabulary,
            merges=_merges(model, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    else:
        scored = list(zip(model.pieces, model.scores, strict=True))
        algorithm = models.Unigram(scored, model.unknown_id, model.byte_fallback)
    tokenizer = Tokenizer(algorithm)
    rules: list[normalizers.Normalizer] = []
    if model.charsmap:
        check_growth(charsmap_growth(model.charsmap))
        rules.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        rules += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    # Where spaces were cut, the library no longer knows which text comes first.
    everywhere = legacy or model.remove_extra_whitespaces
    if model.add_dummy_prefix and everywhere:
        rules.append(normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence([*rules, normalizers.Replace(" ", SPACE)])
    if model.add_dummy_prefix and not everywhere:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            SPACE, prepend_scheme="first", split=False
        )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    kinds = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
    tokenizer.add_tokens(
        [
            AddedToken(piece, normalized=False, special=kinds[kind])
            for piece, kind in zip(model.pieces, model.types, strict=True)
            if kind in kinds
        ]
    )
    return tokenizer


def _merges(model: SentencePieceModel, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """List every way to merge two pieces into a third, the best-scored result first.

    Only normal pieces take part: text must never grow into ``<s>`` or ``<0x0A>``.
    """
    normal = {
        piece
        for piece, kind in zip(model.pieces, model.types, strict=True)
        if kind in (NORMAL, UNUSED)
    }
    found = [
        (-model.scores[vocabulary[piece]], -cut, piece)
        for piece in normal
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    return [(piece[:-minus], piece[-minus:]) for _, minus, piece in sorted(found)]
