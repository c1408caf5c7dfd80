"""Packing of quire-tiny's training rows: nothing lost, nothing mixed, the right tokens weighted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

np = pytest.importorskip("numpy", reason="packing needs numpy")
tokenizers = pytest.importorskip("tokenizers", reason="packing needs tokenizers")

from tools.quire_tiny import packing  # noqa: E402
from tools.quire_tiny.corpus import render, training_texts  # noqa: E402

TOKENIZER = Path(__file__).resolve().parents[2] / "quire/assets/quire-tiny/tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    """The tokenizer of the package."""
    return tokenizers.Tokenizer.from_file(str(TOKENIZER))


def weighted(tokenizer: tokenizers.Tokenizer, text: str) -> str:
    """Return the tokens of a text that count fully, as text."""
    [(ids, weights)] = packing.encode(tokenizer, [text])
    chosen = [i for i, weight in zip(ids, weights, strict=True) if weight == 1.0]
    return tokenizer.decode(chosen, skip_special_tokens=False)


def test_only_the_assistant_counts_fully(tokenizer: tokenizers.Tokenizer) -> None:
    """Answers and their ends count; system, user and roles do not."""
    messages = [
        {"role": "system", "content": "Be helpful."},
        {"role": "user", "content": "Who is the assistant?"},
        {"role": "assistant", "content": "I am."},
        {"role": "user", "content": "Thanks!"},
        {"role": "assistant", "content": "You are welcome!"},
    ]
    assert weighted(tokenizer, render(messages)) == "I am.<|im_end|>You are welcome!<|im_end|>"


def test_plain_text_counts_fully_and_drills_by_their_results(
    tokenizer: tokenizers.Tokenizer,
) -> None:
    """Operands of a drill are random, so they are hardly learnt."""
    assert weighted(tokenizer, "Once upon.<|endoftext|>") == "Once upon.<|endoftext|>"
    assert weighted(tokenizer, "12 + 30 = 42\n7 - 5 = 2<|endoftext|>") == " 42\n 2<|endoftext|>"


def test_packing_keeps_every_document_whole(tokenizer: tokenizers.Tokenizer) -> None:
    """Each document lies in one row, in one piece, under a number of its own."""
    documents = packing.encode(tokenizer, training_texts(Random(1), 400))
    short = [d for d in documents if len(d[0]) <= packing.SHORT_ROW]
    rows = packing.pack(short, packing.SHORT_ROW)
    found = []
    for ids, numbers in zip(rows.ids, rows.documents, strict=True):
        for number in range(int(numbers.max()) + 1):
            places = np.flatnonzero(numbers == number)
            assert places[-1] - places[0] + 1 == len(places)
            found.append(tuple(ids[places].tolist()))
    assert sorted(found) == sorted(tuple(ids) for ids, _ in short)
    assert (rows.weights[rows.documents < 0] == 0).all()
    assert (rows.documents >= 0).mean() > 0.9
