"""Patterns of module names: the answers of ``re``, at a cost that no pattern multiplies."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from quire.checkpoints.quantized import name_patterns
from quire.checkpoints.quantized.name_patterns import NamePattern
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.core.errors import ModelLoadError

NAME = "model.layers.10.mlp.experts.3.down_proj"
HOSTILE = (
    r"^(([a-z_.0-9]+)+)+!$",
    r"(.|[a-z])*(.|[a-z])*!",
    r"(.*){1,60}!",
    ".*" * 30 + "!",
    "[a-z.]?" * 40 + "[a-z0-9._]{39}!",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_pattern_with_billions_of_ways_to_match_ends(text: str) -> None:
    """A server that was asked for such a model stood still, and SIGTERM did not end it."""
    pattern = NamePattern(text)
    assert not pattern.match(NAME)
    assert pattern.match(NAME + "!")


@pytest.mark.parametrize("method", ["compressed-tensors", "gptq"])
def test_patterns_of_checkpoints_are_such(tmp_path: Path, method: str) -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    settings = {
        "compressed-tensors": {
            "format": "int-quantized", "ignore": [f"re:{HOSTILE[0]}"],
            "config_groups": {"g": {"targets": [f"re:{HOSTILE[1]}", "Linear"], "weights": weights}},
        },
        "gptq": {"bits": 4, "group_size": 32, "dynamic": {f"-:{HOSTILE[0]}": {}}},
    }[method]  # fmt: skip
    config = {"quantization_config": {"quant_method": method, **settings}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read_quantization(tmp_path)
    assert found is not None and found.format_of(NAME) is not None
    assert found.format_of(NAME + "!") is None


PARTS = (
    "a", "b", ".", "[ab]", "[^a]", r"\d", r"\W", "(a|b)", "(?:ab|c)", "(a|bc)*", "(?:b+|a)+", "a*",
    "b+?", "c?", ".*", "(?=a)", "(?!b)", "a{2}", "(?:a|b){1,3}", "[a-c]{2,}", "^", "$", "()", "1",
)  # fmt: skip


def test_answers_are_those_of_re(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_patterns, "MAX_CHEAP_SIGNS", -1)
    choose = random.Random(7)
    found = []
    for _ in range(400):
        text = "".join(choose.choices(PARTS, k=choose.randrange(1, 7)))
        pattern = NamePattern(text)
        for _ in range(10):
            name = "".join(choose.choices("abc1.\n", k=choose.randrange(7)))
            found.append(pattern.match(name))
            assert found[-1] == (re.match(text, name) is not None), (text, name)
    assert 500 < sum(found) < 3500


@pytest.mark.parametrize(
    "text", ["(", r"(a)*\1", "(?i)(a|b)*", "(" * 40 + "a" + ")*" * 40, "(?<=a)(b)*"]
)
def test_others_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError):
        NamePattern(text)
    settings = {"quant_method": "gptq", "bits": 4, "dynamic": {f"-:{text}": {}}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    with pytest.raises(ModelLoadError, match="dynamic"):
        read_quantization(tmp_path)
