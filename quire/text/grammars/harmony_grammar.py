"""Harmony's messages as Lark: the analysis, the header of the final message, calls of functions."""

from __future__ import annotations

from quire.text.grammars.grammar_marks import mark, text_until
from quire.text.reasoning_parsers.harmony import CHANNEL, CONSTRAIN, END, MESSAGE, START
from quire.text.tokenizers.tokenizer import Tokenizer


def analysis_rule(tokenizer: Tokenizer) -> list[str]:
    """Return the rule ``analysis``: one message of reasoning and the start of the next one."""
    thinking = text_until(tokenizer, "thinking", END)
    channel, message, start = (mark(tokenizer, one) for one in (CHANNEL, MESSAGE, START))
    rule = f'analysis: {channel} "analysis" {message} thinking {start} "assistant"'
    return [rule, *thinking]


def final_header(tokenizer: Tokenizer) -> str:
    """Return the grammar of all that comes before the text of the final message."""
    channel, message = mark(tokenizer, CHANNEL), mark(tokenizer, MESSAGE)
    start = f'start: analysis* {channel} "final" {message}'
    return "\n".join([start, *analysis_rule(tokenizer)])


def call_header(tokenizer: Tokenizer, function: str) -> str:
    """Return what comes before the arguments of a call."""
    channel, constrain, message = (mark(tokenizer, one) for one in (CHANNEL, CONSTRAIN, MESSAGE))
    return f'{channel} "commentary to=functions.{function} " {constrain} "json" {message}'


def other_message_rules(tokenizer: Tokenizer) -> list[str]:
    """Return the rules ``other`` and ``last_other``: messages that call nothing, to the user."""
    channel, message, start = (mark(tokenizer, one) for one in (CHANNEL, MESSAGE, START))
    header = f'{channel} ("analysis" | "commentary" | "final") {message}'
    return [
        f'other: {header} said {start} "assistant"',
        f"last_other: {header} REST",
        *text_until(tokenizer, "said", END),
        "REST: /(.|\\n)*/",
    ]
