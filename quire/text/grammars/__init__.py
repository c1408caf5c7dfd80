"""Grammars: JSON Schemas, regular expressions and tool calls, compiled to masks of tokens."""
