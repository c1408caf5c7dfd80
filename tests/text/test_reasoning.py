"""Reasoning is split from content the same however the text is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quire
from quire.text.reasoning import (
    FORMATS,
    ReasoningSplitter,
    count_reasoning_tokens,
    detect_reasoning,
)
from quire.text.tokenizer import load_tokenizer

PIECES = ("<think>", "</think>", "\n", " ", "a", "b ", "<", "</th", "ink>", "think", "\n\n", "{")


def split(name, is_open, pieces):
    """Return reasoning and content of a text in pieces."""
    splitter = ReasoningSplitter(FORMATS[name], is_open)
    parts = [splitter.add(piece) for piece in pieces] + [splitter.flush()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=9).map("".join), is_open=st.booleans())
def test_however_the_text_is_cut(name, text, is_open):
    whole = split(name, is_open, [text])
    assert split(name, is_open, list(text)) == whole
    for cut in range(1, len(text)):
        assert split(name, is_open, [text[:cut], text[cut:]]) == whole
    if not is_open and "<think>" not in text:
        assert whole == ("", text)


@pytest.mark.parametrize(
    ("is_open", "text", "reasoning", "content"),
    [
        (False, "<think>\nhm\n</think>\n\nHi.\n", "hm", "Hi.\n"),
        (False, "Hi <think>no</think>", "", "Hi <think>no</think>"),
        (True, "hm\n</think>\nHi.", "hm", "Hi."),
        (True, "<think>hm</think>Hi.", "hm", "Hi."),
        (True, "never ends ", "never ends", ""),
        (False, "<thin", "", "<thin"),
    ],
)
def test_cases(is_open, text, reasoning, content):
    assert split("qwen3", is_open, [text]) == (reasoning, content)


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("qwen3", "<|im_start|>assistant\n", False),
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("deepseek_r1", "<|Assistant|>", True),
        ("deepseek_r1", "<|Assistant|><think></think>", False),
    ],
)
def test_the_prompt_may_open_or_close_it(name, prompt, is_open):
    assert FORMATS[name].begins_open(prompt) is is_open


def test_tokens_are_counted_up_to_the_mark():
    tokenizer = load_tokenizer(Path(quire.__file__).parent / "assets" / "quire-tiny")
    for is_open, text, end in ((False, "<think>ab</think>c", -1), (True, "ab</think>c", -1)):
        ids = [i for c in text for i in tokenizer.encode(c, add_special_tokens=False)]
        made = tokenizer.create_detokenizer(continues=True)
        count = count_reasoning_tokens(FORMATS["qwen3"], is_open, made, ids)
        assert tokenizer.decode(ids[:count]) == text[:end]
    made = tokenizer.create_detokenizer(continues=True)
    assert count_reasoning_tokens(FORMATS["qwen3"], False, made, ids) == 0


def test_detection():
    assert detect_reasoning(["{{ content.split('</think>') }}"]) == "qwen3"
    assert detect_reasoning(["{{ messages }}"]) is None
