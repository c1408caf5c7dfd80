"""Grammars of llama.cpp mean here what they mean there."""

from __future__ import annotations

import pytest

from quire.core.errors import RequestError
from quire.core.structured_outputs import StructuredOutputs
from quire.text.grammars.grammar import create_start, grammar_of
from quire.text.grammars.grammar_vocabulary import GrammarVocabulary

BYTES = GrammarVocabulary([bytes([i]) for i in range(256)] + [b"</s>"], [256], None, [256])
TOKENIZER = BYTES.create_tokenizer()


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (r'"\u0041BC"', "ABC"),
        (r'"\u00e9e"', "ée"),
        (r'"\u0020a"', " a"),
        (r'"\U0001F600"', "😀"),
        (r'"\U0000004Bx"', "Kx"),
        (r'"\x41B\xe9"', "ABé"),
        (r'"\[\]\\n\""', '[]\\n"'),
        (r'"\x00\x7f"', "\0\x7f"),
        (r"[\u0041-\u0041]", "A"),
        (r"[\U0001F600-\U0001F600]", "😀"),
        (r"[\]] [/] [\[] [-] [&&]", "]/[-&"),
        (r'"#" # "a', "#"),
        (r". [^a]", "\n\n"),
        (r"[+--] [a-]", ",-"),
    ],
)
def test_escapes_of_gbnf(grammar: str, text: str) -> None:
    """Zeros of a number were lost, and most escapes refused."""
    constraint = StructuredOutputs(grammar=f"root ::= {grammar}")
    matcher = create_start(TOKENIZER, constraint.kind, grammar_of(constraint))
    assert matcher.try_consume_tokens(list(text.encode())) == len(text.encode())
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    "text", ['"a', "[a", '"\\', r'"\q"', r'"\uD83D"', r'"\U00110000"', "[]", "[z-a]"]
)
def test_what_is_no_gbnf(text: str) -> None:
    with pytest.raises(RequestError, match="valid GBNF"):
        grammar_of(StructuredOutputs(grammar=f"root ::= {text}"))
