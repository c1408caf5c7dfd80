"""Turn texts into packed rows of token ids with loss weights and document numbers.

Documents in one row do not see each other: every chat starts as it will when it is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from tokenizers import Tokenizer

from tools.quire_tiny.corpus import Mixture, long_texts, training_texts
from tools.quire_tiny.tokenizer import IM_END_ID, IM_START_ID, PAD_ID

PROMPT_WEIGHT = 0.1
SHORT_ROW, MIDDLE_ROW, LONG_ROW = 256, 512, 2048
SHORT_ROWS, MIDDLE_ROWS = 24, 2
SHARD_TEXTS = 12000
Document = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Rows:
    """Packed rows, each array (rows, T): ids int64, weights float32, document numbers int32."""

    ids: np.ndarray
    weights: np.ndarray
    documents: np.ndarray


@dataclass(frozen=True)
class Marks:
    """Ids of the tokens that decide the weights of the others."""

    assistant: int
    equals: int
    newline: int
    digits: frozenset[int]


def marks_of(tokenizer: Tokenizer) -> Marks:
    """Look the deciding tokens up."""
    ids = [tokenizer.encode(text).ids[0] for text in ("assistant", " =", "\n", *"0123456789")]
    return Marks(ids[0], ids[1], ids[2], frozenset(ids[3:]))


def loss_weights(ids: list[int], marks: Marks) -> list[float]:
    """Return the weight of predicting each token: 1 in assistant turns and plain text.

    What the assistant does not write (roles, prompts, the newline after an end) weighs
    ``PROMPT_WEIGHT``, and so do the operands of a drill; the end of a turn counts fully.
    """
    if ids[0] in marks.digits:
        return drill_weights(ids, marks)
    if ids[0] != IM_START_ID:
        return [1.0] * len(ids)
    weights, own, header = [], False, 0
    for i, token in enumerate(ids):
        if token == IM_START_ID:
            own, header = ids[i + 1] == marks.assistant, 3
        weights.append(1.0 if own and not header else PROMPT_WEIGHT)
        header = max(0, header - 1)
        if token == IM_END_ID:
            own = False
    return weights


def drill_weights(ids: list[int], marks: Marks) -> list[float]:
    """Return 1 for what follows an equals sign, up to the end of the line."""
    weights, result = [], False
    for token in ids:
        weights.append(1.0 if result else PROMPT_WEIGHT)
        result = token == marks.equals or (result and token != marks.newline)
    return weights


def pack(documents: list[Document], length: int, window: int = 12) -> Rows:
    """Pack documents first-fit into the last ``window`` rows of ``length``; longer ones are cut."""
    rows: list[list[int]] = []
    room: list[int] = []
    start = 0
    for i, (ids, _) in enumerate(documents):
        size = min(len(ids), length)
        for r in range(start, len(rows)):
            if room[r] >= size:
                break
        else:
            r = len(rows)
            rows.append([])
            room.append(length)
            start = max(0, len(rows) - window)
        rows[r].append(i)
        room[r] -= size
    packed = Rows(
        np.full((len(rows), length), PAD_ID, np.int64),
        np.zeros((len(rows), length), np.float32),
        np.full((len(rows), length), -1, np.int32),
    )
    for r, members in enumerate(rows):
        offset = 0
        for number, i in enumerate(members):
            ids, weights = documents[i]
            size = min(len(ids), length)
            packed.ids[r, offset : offset + size] = ids[:size]
            packed.weights[r, offset : offset + size] = weights[:size]
            packed.weights[r, offset] = 0.0
            packed.documents[r, offset : offset + size] = number
            offset += size
    return packed


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[Document]:
    """Tokenize texts and weigh their tokens."""
    marks = marks_of(tokenizer)
    return [(e.ids, loss_weights(e.ids, marks)) for e in tokenizer.encode_batch(texts)]


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Return the documents for short and for middle rows, in the proportion of a step's tokens."""
    middle = [d for d in documents if len(d[0]) > SHORT_ROW]
    short = [d for d in documents if len(d[0]) <= SHORT_ROW]
    share = MIDDLE_ROWS * MIDDLE_ROW / (MIDDLE_ROWS * MIDDLE_ROW + SHORT_ROWS * SHORT_ROW)
    missing = share * sum(len(d[0]) for d in documents) - sum(len(d[0]) for d in middle)
    while missing > 0:
        middle.append(short.pop())
        missing -= len(middle[-1][0])
    return short, middle


def take(rows: Rows, which: np.ndarray) -> Rows:
    """Select rows."""
    return Rows(rows.ids[which], rows.weights[which], rows.documents[which])


def batches(
    tokenizer: Tokenizer, seed: int, first_shard: int, mixture: Callable[[], Mixture]
) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Yield for each step short rows, middle rows and one long row, for ever.

    The caller trains on the short rows and on one of the other two. ``mixture`` is asked again
    for every shard.
    """
    shard = first_shard
    while True:
        rng = Random(f"{seed}/{shard}")
        documents = encode(tokenizer, training_texts(rng, SHARD_TEXTS, mixture()))
        short_documents, middle_documents = split(documents)
        short = pack(short_documents, SHORT_ROW)
        middle = pack(middle_documents, MIDDLE_ROW, window=len(middle_documents))
        num_steps = len(short.ids) // SHORT_ROWS
        long = pack(encode(tokenizer, long_texts(rng, num_steps)), LONG_ROW)
        order = np.random.default_rng([seed, shard])
        short_order = order.permutation(len(short.ids))
        middle_order = order.permutation(
            np.resize(np.arange(len(middle.ids)), num_steps * MIDDLE_ROWS)
        )
        for i in range(num_steps):
            yield (
                take(short, short_order[i * SHORT_ROWS : (i + 1) * SHORT_ROWS]),
                take(middle, middle_order[i * MIDDLE_ROWS : (i + 1) * MIDDLE_ROWS]),
                take(long, np.array([i % len(long.ids)])),
            )
        shard += 1
