"""Text in, token ids out and back: tokenizers, templates, grammars, parsers of answers.

All of it works on text that arrives in pieces and within limits that a hostile file or request
cannot exceed.
"""
