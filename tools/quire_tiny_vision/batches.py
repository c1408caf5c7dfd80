"""Batches of scenes with questions, drawn by another process; each follows from its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from tools.quire_tiny.tokenizer import PAD_ID
from tools.quire_tiny_vision.model import CELLS, EDGE, ChatTokens
from tools.quire_tiny_vision.questions import questions
from tools.quire_tiny_vision.scenes import cell_labels, draw_scene

#: Questions about each picture.
NUM_QUESTIONS = 5
#: The first batches show one thing a picture, which is learnt sooner.
ALONE_BATCHES = 250
#: Of the pictures, whose questions are turns of one chat; those of others do not see each other.
CHATS = 0.25
#: What is asked without a picture.
BLIND = (
    "What colour is it?", "What shape is it?", "Describe the picture.", "Hello!", "Hi",
    "How many shapes are there?", "What is the capital of France?", "Which digit is it?",
    "Where is the circle?", "What do you see?", "Who are you?", "What can you do?", "Hello",
)  # fmt: skip
BLIND_ANSWER = "Please send me a picture of coloured shapes or of a digit."


@dataclass(frozen=True, slots=True)
class Batch:
    """B pictures, T tokens, C cells of a picture.

    Attributes:
        pixels: (B, 3, EDGE, EDGE) float32, -1 to 1.
        labels: (B, 2, C) of ``cell_labels``.
        ids: (B, T), or with T = 0 where only the encoder is trained.
        positions: (B, T).
        parts: (B, T): 0 for what all see, else the number of the question; -1 for padding.
        said: (B, T), whether the model is to say the token.
    """

    pixels: Tensor
    labels: Tensor
    ids: Tensor
    positions: Tensor
    parts: Tensor
    said: Tensor

    def split(self, number: int) -> list[Batch]:
        """Return parts of as many pictures each."""
        columns = [getattr(self, field.name).chunk(number) for field in fields(self)]
        return [Batch(*part) for part in zip(*columns, strict=True)]

    def visible(self) -> Tensor:
        """Return (B, 1, T, T): whether a token sees another."""
        parts, length = self.parts, self.parts.shape[1]
        same = (parts[:, :, None] == parts[:, None, :]) | (parts[:, None, :] == 0)
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return (same & causal)[:, None]


def prepared(picture: Image.Image) -> npt.NDArray[np.float32]:
    """Return a picture as the encoder takes it, (3, EDGE, EDGE)."""
    small = picture.convert("RGB").resize((EDGE, EDGE), Image.Resampling.BICUBIC)
    values: npt.NDArray[np.float32] = np.asarray(small, np.float32) / 127.5 - 1
    return values.transpose(2, 0, 1)


def make_batch(seed: int, number: int, size: int, chat: ChatTokens | None) -> Batch:
    """Return a batch; without ``chat`` there are no tokens."""
    pixels, labels, rows = [], [], []
    for index in range(size):
        random = Random(f"{seed} {number} {index}")
        scene = draw_scene(random, alone=number < ALONE_BATCHES)
        pixels.append(prepared(scene.picture))
        labels.append(cell_labels(scene, CELLS))
        if chat is None:
            rows.append(EMPTY)
        else:
            asked = questions(scene, random, NUM_QUESTIONS)
            pairs = [(question.text, question.answer) for question in asked]
            rows.append(_row(chat, pairs, random.random() < CHATS, picture=True))
    return Batch(
        torch.from_numpy(np.stack(pixels)), torch.from_numpy(np.stack(labels)), *_padded(rows)
    )


def make_blind_batch(chat: ChatTokens) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, positions, parts and said of chats without a picture, a row each."""
    rows = [_row(chat, [(text, BLIND_ANSWER)], True, picture=False) for text in BLIND]
    return _padded(rows)


Row = tuple[list[int], list[int], list[int], list[bool]]
EMPTY: Row = [], [], [], []


def _row(chat: ChatTokens, pairs: list[tuple[str, str]], one_chat: bool, *, picture: bool) -> Row:
    ids = chat.opening(picture=picture)
    start = len(ids)
    positions, parts, said = list(range(start)), [0] * start, [False] * start
    for number, (question, answer) in enumerate(pairs, 1):
        tokens, spoken = chat.turn(question, answer, first=number == 1 or not one_chat)
        first = len(ids) if one_chat else start
        ids += tokens
        said += spoken
        positions += range(first, first + len(tokens))
        parts += [1 if one_chat else number] * len(tokens)
    return ids, positions, parts, said


def _padded(rows: list[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    length = max(len(ids) for ids, *_ in rows)
    columns = [
        torch.tensor([[*row[column], *[padding] * (length - len(row[0]))] for row in rows])
        for column, padding in enumerate((PAD_ID, 0, -1, False))
    ]
    ids, positions, parts, said = columns
    return ids, positions, parts, said


class _Batches(IterableDataset[Batch]):
    def __init__(self, seed: int, numbers: range, size: int, with_chats: bool) -> None:
        self._seed, self._numbers, self._size = seed, numbers, size
        self._with_chats = with_chats

    def __iter__(self) -> Iterator[Batch]:
        torch.set_num_threads(1)
        chat = ChatTokens() if self._with_chats else None
        for number in self._numbers:
            yield make_batch(self._seed, number, self._size, chat)


def batches(seed: int, numbers: range, size: int, *, with_chats: bool) -> Iterator[Batch]:
    """Return the batches of these numbers in order, made ahead by a process."""
    made = _Batches(seed, numbers, size, with_chats)
    return iter(DataLoader(made, batch_size=None, num_workers=1, prefetch_factor=8))
