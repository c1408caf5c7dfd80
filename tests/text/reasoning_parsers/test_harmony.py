"""Harmony's channels: what is reasoning, what is for the user, what is a call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quire
from quire.core.structured_outputs import StructuredOutputs
from quire.text.grammars.grammar import GrammarCompiler
from quire.text.grammars.tool_grammar import Function, forced_calls
from quire.text.reasoning_parsers.harmony import HarmonyReader
from quire.text.reasoning_parsers.reasoning import FORMATS
from quire.text.tokenizers.tokenizer import load_tokenizer
from quire.text.tool_parsers import PARSERS
from quire.text.tool_parsers.interface import Parsed
from tests.sizes import sized

FORM = FORMATS["openai_gptoss"]
THOUGHT = "<|channel|>analysis<|message|>Need the time.<|end|>"
CALL = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
FINAL = "<|channel|>final<|message|>Noon.\n"
NEXT = "<|start|>assistant"
KINDS = ("analysis", "commentary", "final", "analysis to=python", "commentary to=functions.f ")
#: Blank content next to a call is none, as of all formats: a case below.
WORDS = st.text(st.sampled_from("ab \n{}<|"), min_size=1, max_size=6).filter(str.strip)
MESSAGES = st.lists(st.tuples(st.sampled_from(KINDS), WORDS), max_size=4)


def answer(text, pieces=None, is_open=False):
    """Return reasoning, content and calls of an answer, read as a server reads it."""
    splitter, parser, found = FORM.create_splitter(is_open), PARSERS["openai"](), Parsed()
    reasoning = ""
    for piece in pieces or [text]:
        thought, content = splitter.add(piece)
        reasoning += thought
        found.join(parser.add(content))
    thought, content = splitter.flush()
    found.join(parser.add(content))
    found.join(parser.flush())
    calls = [call.name for call in found.calls if call.name]
    return reasoning + thought, found.content, calls


@settings(max_examples=sized(60, 150), deadline=None)
@given(messages=MESSAGES)
def test_a_literal_reading(messages):
    """The definition: split the whole text at its marks."""
    text = NEXT.join(f"<|channel|>{kind}<|message|>{said}<|end|>" for kind, said in messages)
    expected = {"analysis": [], "content": [], "calls": []}
    for header, body in re.findall(r"<\|channel\|>(.*?)<\|message\|>(.*?)<\|end\|>", text, re.S):
        if "to=functions." in header:
            expected["calls"].append("f")
        elif header == "analysis" or "to=" in header:
            expected["analysis"].append(body)
        else:
            expected["content"].append(body)
    found = answer(text)
    assert found == (
        "\n".join(expected["analysis"]), "\n".join(expected["content"]), expected["calls"]
    )  # fmt: skip
    assert answer(text, list(text)) == found
    for cut in range(1, len(text)):
        assert answer(text, [text[:cut], text[cut:]]) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (THOUGHT + NEXT + FINAL, ("Need the time.", "Noon.\n", [])),
        (THOUGHT + NEXT + CALL, ("Need the time.", "", ["now"])),
        ("<|channel|>commentary<|message|>I look.<|end|>" + NEXT + CALL, ("", "I look.", ["now"])),
        ("<|channel|>commentary<|message|> <|end|>" + NEXT + CALL, ("", "", ["now"])),
        ("No channel at all.", ("", "No channel at all.", [])),
        ("<|channel|>fin", ("", "", [])),
        ("to=", ("", "to=", [])),
        ("", ("", "", [])),
    ],
)
def test_cases(text, expected):
    assert answer(text) == expected


def test_pieces_joined_are_the_text():
    text = THOUGHT + NEXT + CALL + "<|call|>\n" + NEXT + FINAL
    reader = HarmonyReader()
    pieces = [piece for c in text for piece in reader.add(c)] + reader.flush()
    assert "".join(piece.text for piece in pieces) == text


def test_an_analysis_that_the_prompt_began():
    assert FORM.begins_open("<|start|>assistant<|channel|>analysis<|message|>")
    assert not FORM.begins_open("<|start|>assistant")
    assert FORM.is_left_open_by("<|channel|>analysis<|message|>hm")
    assert not FORM.is_left_open_by(THOUGHT)
    assert answer("hm<|end|>" + NEXT + FINAL, is_open=True) == ("hm", "Noon.\n", [])


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(Path(quire.__file__).parent / "assets" / "quire-tiny")


def test_tokens_of_the_analysis_are_counted(tokenizer):
    for text, counted in ((THOUGHT + NEXT + FINAL, THOUGHT), (FINAL, ""), (CALL, "")):
        ids = [i for c in text for i in tokenizer.encode(c, add_special_tokens=False)]
        made = tokenizer.create_detokenizer(continues=True)
        count = FORM.count_tokens(False, made, ids)
        assert tokenizer.decode(ids[:count]) == counted


def test_structure_begins_in_the_final_message(tokenizer):
    compiler = GrammarCompiler(tokenizer, [2], tokenizer.vocab_size)
    asked = FORM.begin_answer(StructuredOutputs(choice=["7"]), tokenizer)

    def allowed(text, constraint=asked):
        mask = compiler.create_matcher(constraint).allowed(tokenizer.encode(text, False))
        return bool(mask[0] >> 2 & 1)

    final = "<|channel|>final<|message|>7"
    assert allowed(final) and allowed(THOUGHT + NEXT + final)
    assert allowed(THOUGHT + NEXT + THOUGHT + NEXT + final)
    for text in ("7", THOUGHT, THOUGHT + NEXT + final + "7", CALL):
        assert not allowed(text)
    calls = forced_calls("openai", [Function("now", {"type": "object"})], False, tokenizer)
    forced = StructuredOutputs(grammar=calls)
    assert allowed(CALL, forced) and allowed(THOUGHT + NEXT + CALL, forced)
    assert not allowed(THOUGHT, forced) and not allowed(final, forced)
