"""The compiler of grammars that is made when the engine serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.core.errors import ModelLoadError
from quire.core.structured_outputs import StructuredOutputs
from quire.llm.grammars import lazy_compiler as late_compiler
from quire.llm.grammars.lazy_compiler import LazyCompiler
from quire.store.hub import resolve_model
from quire.text.tokenizers.tokenizer import load_tokenizer

DIGITS = StructuredOutputs(regex="[0-9]+")


def compiler_of(folder: Path) -> LazyCompiler:
    vocab_size = load_tokenizer(resolve_model("quire-tiny")).vocab_size
    made = LazyCompiler(str(folder), (0,), vocab_size)
    made.start()
    return made


def test_a_request_that_needs_it_has_it_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_compiler, "DELAY_SECONDS", 1e6)
    made = compiler_of(resolve_model("quire-tiny"))
    assert not made.knows(DIGITS)
    made.compile(DIGITS)
    assert made.knows(DIGITS)
    allowed = made.create_matcher(DIGITS).allowed([])
    tokenizer = load_tokenizer(resolve_model("quire-tiny"))
    for text, is_allowed in (("7", 1), ("a", 0)):
        (token_id,) = tokenizer.encode(text, add_special_tokens=False)
        assert allowed[token_id // 8] >> token_id % 8 & 1 == is_allowed, text


def test_it_is_made_before_a_request_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A change of the files after a start does not matter to the requests that it serves."""
    monkeypatch.setattr(late_compiler, "DELAY_SECONDS", 0.0)
    source, copied = resolve_model("quire-tiny"), tmp_path / "tokenizer.json"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    made = compiler_of(tmp_path)
    made._made.result(60)
    copied.unlink()
    made.compile(DIGITS)
    assert made.knows(DIGITS)


def test_a_tokenizer_that_is_gone_is_told(tmp_path: Path) -> None:
    made = compiler_of(tmp_path)
    with pytest.raises(ModelLoadError, match="tokenizer"):
        made.compile(DIGITS)
    assert not made.knows(DIGITS)
