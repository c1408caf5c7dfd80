"""Reasoning is split from content the same however the text is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quire
from quire.text.reasoning_parsers.reasoning import FORMATS, detect_reasoning
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.sizes import sized

PIECES = ("\n", " ", "a", "b ", "<", "</th", "ink>", "think", "\n\n", "{", "Here", "'s my")


def split(name, is_open, pieces):
    """Return reasoning and content of a text in pieces."""
    splitter = FORMATS[name].create_splitter(is_open)
    parts = [splitter.add(piece) for piece in pieces] + [splitter.flush()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=sized(60, 150), deadline=None)
@given(data=st.data(), is_open=st.booleans())
def test_however_the_text_is_cut(name, data, is_open):
    marks = FORMATS[name].marks
    pieces = st.sampled_from(PIECES) | st.sampled_from(marks)
    text = data.draw(st.lists(pieces, max_size=9).map("".join))
    whole = split(name, is_open, [text])
    assert split(name, is_open, list(text)) == whole
    for cut in range(1, len(text)):
        assert split(name, is_open, [text[:cut], text[cut:]]) == whole
    if not is_open and not any(mark in text for mark in marks):
        assert whole == ("", "" if name == "openai_gptoss" and not text.strip() else text)


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
        count = FORMATS["qwen3"].count_tokens(is_open, made, ids)
        assert tokenizer.decode(ids[:count]) == text[:end]
    made = tokenizer.create_detokenizer(continues=True)
    assert FORMATS["qwen3"].count_tokens(False, made, ids) == 0


def test_detection():
    assert detect_reasoning(["{{ content.split('</think>') }}"]) == "qwen3"
    assert detect_reasoning(["Write it after 'Here is my thought process:'."]) == "granite"
    assert detect_reasoning(["<|start|>assistant<|channel|>analysis<|message|>"]) == "openai_gptoss"
    assert detect_reasoning(["{{ messages }}"]) is None


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Here is my thought process: hm. Here is my response: Hi.", "hm.", "Hi."),
        ("Here's my thought process:\nhm\nHere's my response:\nHi.", "hm", "Hi."),
        ("Here is my answer.", "", "Here is my answer."),
    ],
)
def test_granite(text, reasoning, content):
    assert split("granite", False, [text]) == (reasoning, content)


def test_space_without_end_is_looked_at_once():
    """All of it was searched anew with each piece, which took a time that grows with its square."""
    splitter = FORMATS["qwen3"].create_splitter(True)
    assert splitter.add("a") == ("a", "")
    for _ in range(100):
        assert splitter.add(" \n") == ("", "")
        assert len(splitter._buffer) <= 2
    assert splitter.add("b") == (" \n" * 100 + "b", "")
    assert splitter.add("  ") == splitter.add("  ") == splitter.flush() == ("", "")
