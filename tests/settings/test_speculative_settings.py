"""Speculative methods as users give them: keys, short forms, other engines' names, errors."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.core.speculative_config import (
    AVAILABLE_METHODS,
    METHODS,
    SpeculativeMethod,
)
from quire.settings.config import EngineConfig, SpeculativeOptions
from quire.settings.engine_keywords import read_keywords
from quire.settings.speculative_settings import KEYS, SHORT_FORMS, parse_speculative


def parsed(**settings: Any) -> tuple[SpeculativeMethod, ...]:
    return EngineConfig.from_keywords(**settings).speculative.parsed().methods


NGRAM = SpeculativeMethod(method="ngram", num_speculative_tokens=5)


@pytest.mark.parametrize(
    "settings",
    [
        {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 5}'},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}},
        {"speculative_config": [{"method": "ngram", "num_speculative_tokens": 5}]},
        {"speculative_config": {"model": "[ngram]", "num_speculative_tokens": 5}},
        {"speculative_config": {"model": "ngram", "num_speculative_tokens": 5}},
        {"speculative_config": {"method": "ngram", "model": "ngram", "num_speculative_tokens": 5}},
        {"speculative_config": {"method": "ngram_gpu", "num_speculative_tokens": 5}},
        {"speculative_config": {"method": "suffix", "num_speculative_tokens": 5}},
        {"speculative_config": {"method": "ngram"}, "spec_tokens": 5},
        {"speculative_config": {"method": "ngram"}, "num_speculative_tokens": 5},
        {"speculative_config": {"method": "ngram", "model": None}, "num_speculative_tokens": 5},
        {"spec_method": "ngram", "spec_tokens": 5},
        {"speculative_model": "[ngram]", "num_speculative_tokens": 5},
        {"spec_model": "[ngram]", "spec_tokens": 5, "num_speculative_tokens": 5},
        {"speculative_model": "[ngram]", "spec_method": "ngram", "spec_tokens": 5},
        {
            "speculative_model": "[ngram]",
            "spec_tokens": 5,
            "speculative_draft_tensor_parallel_size": 1,
        },
    ],
    ids=str,
)
def test_every_form_of_the_same_method(settings: dict[str, Any]) -> None:
    assert parsed(**settings) == (NGRAM,)


def test_every_key_and_every_short_form_has_its_place() -> None:
    own = {field.name for field in fields(SpeculativeMethod)} - {"is_inferred"}
    assert own <= set(KEYS) and set(SHORT_FORMS.values()) <= set(KEYS)
    options = {field.name for field in fields(SpeculativeOptions)}
    assert options == {"speculative_config", *SHORT_FORMS}
    entry = {
        "method": "ngram",
        "num_speculative_tokens": 6,
        "adaptive": False,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 9,
        "max_model_len": "4k",
        "acceptance": "coupled",
        "disable_by_batch_size": 8,
        "num_speculative_tokens_per_batch_size": [[1, 2, 6], [4, 7, 3]],
        "alarm": 0.5,
    }
    (method,) = parse_speculative(entry).methods
    for name, value in entry.items():
        known = {"max_model_len": 4096}.get(name, value)
        if name == "num_speculative_tokens_per_batch_size":
            known = ((1, 2, 6), (4, 7, 3))
        assert getattr(method, name) == known, name
    short = {
        "speculative_model": "[ngram]",
        "spec_tokens": 6,
        "speculative_max_model_len": "4k",
        "ngram_prompt_lookup_max": 9,
        "ngram_prompt_lookup_min": 2,
        "speculative_disable_by_batch_size": 8,
    }
    (old,) = parsed(**short)
    assert (old.num_speculative_tokens, old.max_model_len) == (6, 4096)
    assert (old.prompt_lookup_min, old.prompt_lookup_max) == (2, 9)
    assert old.disable_by_batch_size == 8


@pytest.mark.parametrize("method", METHODS)
def test_tokens_of_a_round_by_default(method: str) -> None:
    extra = {"quantization": "int4"} if method == "self" else {}
    (made,) = parse_speculative({"method": method, **extra}).methods
    assert made.num_speculative_tokens == (7 if method == "ngram" else 4)
    assert made.adaptive and made.acceptance == "coupled" and not made.is_inferred


def test_a_model_without_a_method_is_a_draft_model_until_it_is_read() -> None:
    (method,) = parsed(speculative_config={"model": Path("/models/draft")})
    assert (method.method, method.model, method.is_inferred) == (
        "draft_model",
        "/models/draft",
        True,
    )
    (named,) = parsed(spec_method="draft_model", spec_model=Path("/models/draft"))
    assert named.model == method.model and not named.is_inferred


def test_several_methods_in_their_order() -> None:
    made = parsed(speculative_config=[{"method": "eagle3"}, {"method": "ngram"}])
    assert [method.method for method in made] == ["eagle3", "ngram"]
    assert parsed() == parsed(speculative_config={}) == parsed(speculative_config="[]") == ()


@pytest.mark.parametrize(
    ("running", "tokens"), [(1, 6), (2, 6), (3, 6), (4, 3), (7, 3), (8, 1), (15, 1), (16, 0)]
)
def test_tokens_by_running_requests(running: int, tokens: int) -> None:
    """A gap is as the range before it, as in vLLM."""
    method = SpeculativeMethod(
        method="mtp",
        num_speculative_tokens=6,
        num_speculative_tokens_per_batch_size=((1, 2, 6), (4, 7, 3), (8, 9, 1)),
        disable_by_batch_size=16,
    )
    assert method.tokens_at(running) == tokens
    assert SpeculativeMethod(method="mtp").tokens_at(running) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"speculative_config": "ngram"}, "must be a JSON object or a list of them; got 'ngram'"),
        ({"speculative_config": "[1]"}, "must be a JSON object or a list of them"),
        ({"speculative_config": "[{}]"}, "must be a JSON object or a list of them"),
        ({"speculative_config": {"metod": "ngram"}}, "got 'metod'. Did you mean method?"),
        ({"speculative_config": {"zzz": 1}}, "got 'zzz'. Keys are acceptance, "),
        ({"speculative_config": {"is_inferred": True}}, "must have known keys; got 'is_inferred'"),
        ({"speculative_config": {"method": "eagel"}}, '"method" must be one of ngram, draft_model'),
        ({"speculative_config": {"method": ["ngram"]}}, '"method" must be one of ngram'),
        ({"speculative_config": {"alarm": 0.5}}, "must come with a method or a model; got neither"),
        ({"spec_tokens": 4}, "--spec-tokens must come with a method or a model"),
        (
            {
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
                "spec_tokens": 4,
            },
            '--speculative-config and --spec-tokens must not differ in "num_speculative_tokens"; '
            "got 3 and 4",
        ),
        (
            {"spec_model": "a", "speculative_model": "b"},
            "--spec-model and --speculative-model must not differ in \"model\"; got 'a' and 'b'",
        ),
        (
            {"spec_method": "mtp", "spec_model": "[ngram]"},
            "--spec-method and --spec-model must not differ",
        ),
        (
            {"speculative_config": [{"method": "mtp"}, {"method": "ngram"}], "spec_tokens": 4},
            "must hold one method with --spec-tokens; got 2",
        ),
        ({"speculative_config": [{"method": "mtp"}] * 2}, "must name each method once; got mtp"),
        ({"spec_method": "mtp", "spec_tokens": 0}, '"num_speculative_tokens" must be at least 1'),
        ({"spec_method": "mtp", "spec_tokens": -1}, "must be a whole number of at least 1; got -1"),
        ({"spec_method": "mtp", "spec_tokens": 65}, "must be at most 64; got 65"),
        (
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2.5}},
            "must be a whole number of at least 1; got 2.5",
        ),
        ({"spec_method": "mtp", "spec_tokens": "4"}, "--spec-tokens must be int or None"),
        (
            {"speculative_config": {"method": "mtp", "max_model_len": "4q"}},
            "\"max_model_len\" must be a whole number of at least 1; got '4q'",
        ),
        (
            {"spec_method": "mtp", "speculative_draft_tensor_parallel_size": 2},
            '"draft_tensor_parallel_size" must be 1: one process drafts; got 2',
        ),
        (
            {"spec_method": "mtp", "ngram_prompt_lookup_max": 3},
            '"prompt_lookup_max" must be left out of method mtp; got 3',
        ),
        (
            {
                "spec_method": "ngram",
                "ngram_prompt_lookup_min": 4,
                "ngram_prompt_lookup_max": 3,
            },
            '"prompt_lookup_min" must be at most prompt_lookup_max (3); got 4',
        ),
        (
            {"speculative_config": {"method": "ngram", "quantization": "int4"}},
            '"quantization" must be left out of method ngram',
        ),
        (
            {"speculative_config": {"method": "draft_model", "model": "m", "quantization": ["x"]}},
            '"quantization" must be one of int8',
        ),
        ({"spec_method": "self"}, '"quantization" must be given for method self'),
        ({"spec_method": "self", "spec_model": "m"}, '"model" must be left out of method self'),
        ({"spec_method": "ngram", "spec_model": "m"}, '"model" must be left out of method ngram'),
        ({"speculative_config": {"model": 5}}, '"model" must be text; got 5'),
        (
            {"speculative_config": {"method": "ngram", "acceptance": "typical"}},
            '"acceptance" must be one of coupled, rejection; got',
        ),
        (
            {"speculative_config": {"method": "mtp", "rejection_sample_method": "synthetic"}},
            "this one would change the answers",
        ),
        (
            {"speculative_config": {"method": "eagle", "speculative_token_tree": "[(0, 0)]"}},
            '"speculative_token_tree" must be a tree',
        ),
        ({"speculative_config": {"method": "ngram", "alarm": 60}}, '"alarm" must be in [0, 1]'),
        (
            {"speculative_config": {"method": "ngram", "alarm": float("nan")}},
            '"alarm" must be in [0, 1]',
        ),
        ({"speculative_config": {"method": "ngram", "adaptive": 1}}, '"adaptive" must be true'),
    ],
    ids=str,
)
def test_what_cannot_be_is_an_error_that_names_it(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_keywords(settings)
    assert str(caught.value).startswith("[config] --") and words in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("1-4", "must be a list of [first, last, tokens]"),
        ([[1, 4]], "must hold [first, last, tokens] of whole numbers"),
        ([[1, 4, 2.0]], "must hold [first, last, tokens] of whole numbers"),
        ([[2, 4, 3]], "must begin with 1 running request"),
        ([[1, 4, 3], [4, 8, 2]], "must hold ascending ranges"),
        ([[1, 0, 3]], "must hold ascending ranges"),
        ([[1, 4, 5]], "must hold 0 to num_speculative_tokens (4) tokens"),
    ],
)
def test_wrong_schedules(schedule: Any, words: str) -> None:
    entry = {"method": "mtp", "num_speculative_tokens_per_batch_size": schedule}
    with pytest.raises(ConfigError) as caught:
        parse_speculative(json.dumps(entry))
    assert words in str(caught.value)


def test_what_other_engines_have_is_told() -> None:
    entry = {
        "method": "deepseek_mtp",
        "quantization": "fp8",
        "enforce_eager": True,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
        "draft_tensor_parallel_size": 1,
        "moe_backend": None,
    }
    made = parse_speculative(entry)
    assert made.methods == (SpeculativeMethod(method="mtp", quantization="int8"),)
    assert [line.split(" changes ")[0].split(" is ")[0] for line in made.notices] == [
        '--speculative-config "enforce_eager"',
        '--speculative-config "draft_sample_method"',
        '--speculative-config "rejection_sample_method"',
        "--speculative-config method deepseek_mtp",
        '--speculative-config "quantization" fp8',
    ]


def test_a_draft_model_may_be_quantized_already() -> None:
    """An AWQ draft was to be rounded to int4, which is an error."""
    made = parse_speculative({"method": "draft_model", "model": "m", "quantization": "awq"})
    assert made.methods[0].quantization == "awq" and not made.notices


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_not_there_is_told_and_left_out(method: str) -> None:
    entry = {"method": method, **({"quantization": "int4"} if method == "self" else {})}
    config, notices = read_keywords({"speculative_config": entry})
    if method in AVAILABLE_METHODS:
        assert [made.method for made in config.speculative.methods()] == [method]
        assert notices == []
    else:
        assert config.speculative.methods() == ()
        assert notices == [
            f"speculative_config={method!r} is not available: no tokens are proposed (the answers "
            "are the same)."
        ]


def test_the_page_says_which_methods_are_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "speculation.md").read_text("utf-8")
    table = page.partition("## Methods")[2].partition("## Settings")[0]
    rows = [row.strip("| ").split("|") for row in table.splitlines() if row.startswith("| `")]
    here = {
        name.strip(" `"): cells[-1].strip()
        for first, *cells in rows
        if first.strip() != "`method`"
        for name in first.split(",")
    }
    assert here == {name: "yes" if name in AVAILABLE_METHODS else "not yet" for name in METHODS}
