"""What finishes under a constraint satisfies it, whatever the model would rather say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire import LLM, SamplingParams, StructuredOutputs
from quire.core.errors import FailureKind, RequestError
from quire.store.hub import resolve_model
from tests.integration.schemas import schemas
from tests.sizes import sized

FUZZ = settings(
    max_examples=sized(8, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2", "quire-tiny"])
def llm(request: pytest.FixtureRequest, checkpoint: Any, device: str, small: Any) -> Iterator[LLM]:
    """Random models say anything that is allowed; quire-tiny would say something sensible."""
    if request.param == "quire-tiny":
        folder = resolve_model("quire-tiny")
    else:
        folder = checkpoint(request.param, max_position_embeddings=512)
    with LLM(str(folder), device=device, **small) as llm:
        yield llm
        llm.engine.engine.scheduler.kv.check_integrity()


def outputs(llm: LLM, seed: int = 0, **constraint: Any) -> list[str]:
    """Return the finished texts of four sequences at temperature 1."""
    params = SamplingParams(
        n=4, seed=seed, max_tokens=200, structured_outputs=StructuredOutputs(**constraint)
    )
    (output,) = llm.generate("A:", params, use_tqdm=False)
    assert output.error is None
    for sequence in output.outputs:
        assert sequence.finish_reason in ("stop", "length"), output.error
    return [sequence.text for sequence in output.outputs if sequence.finish_reason == "stop"]


@FUZZ
@given(schema=schemas(), seed=st.integers(0, 2**31))
def test_any_schema(llm: LLM, schema: dict[str, Any], seed: int) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    try:
        texts = outputs(llm, seed, json=schema)
    except RequestError as error:
        assert error.param == "structured_outputs"
        return
    for text in texts:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


def test_a_schema_of_everyday(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
    texts = outputs(llm, json=schema)
    assert texts
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


def test_a_recursive_schema(llm: LLM) -> None:
    schema = {
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
        "$ref": "#/$defs/tree",
    }
    for seed in range(sized(2, 5)):
        for text in outputs(llm, seed, json=schema):
            jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "regex",
    [r"[0-9]{3}-[a-z]{4}", "(yes|no|maybe)!{0,3}", "é{1,3}[äöü]", "(a|b)*a(a|b){20}c", "東京?"],
)
def test_regex(llm: LLM, regex: str) -> None:
    for seed in range(sized(2, 3)):
        texts = outputs(llm, seed, regex=regex)
        assert all(re.fullmatch(regex, text) for text in texts), texts


@pytest.mark.parametrize(
    "choice", [["yes", "no"], ["a", "ab", "abc"], ['q"\\', "a.b\n", "(x)", "東京", "\x01", "😀"]]
)
def test_choice(llm: LLM, choice: list[str]) -> None:
    texts = [text for seed in range(4) for text in outputs(llm, seed, choice=choice)]
    assert len(texts) == 16
    assert set(texts) <= set(choice)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "x" | "(" start ")"',
        'root ::= "x" | "(" root ")"',
    ],
)
def test_grammar(llm: LLM, grammar: str) -> None:
    for text in outputs(llm, grammar=grammar):
        depth = text.count("(")
        assert text == "(" * depth + "x" + ")" * depth


def test_json_object(llm: LLM) -> None:
    for seed in range(sized(2, 5)):
        for text in outputs(llm, seed, json_object=True):
            assert isinstance(json.loads(text), dict)


def test_the_end_is_allowed_only_where_the_grammar_ends(llm: LLM) -> None:
    eos = llm.engine.model_config.eos_token_ids
    params = SamplingParams(
        temperature=0.0,
        logit_bias=dict.fromkeys(eos, 100.0),
        structured_outputs=StructuredOutputs(regex="a{5}b?"),
    )
    (output,) = llm.generate("A:", params, use_tqdm=False)
    assert output.outputs[0].text == "aaaaa"
    assert output.outputs[0].token_ids[-1] in eos


def test_what_leaves_no_token_ends_alone(llm: LLM) -> None:
    """A constraint against itself fails its request; its neighbour goes on.

    What leaves no first token is refused before it runs.
    """
    (a,) = llm.get_tokenizer().encode("a", add_special_tokens=False)
    begins = StructuredOutputs(regex="a[b-y]")
    impossible = SamplingParams(allowed_token_ids=[a], structured_outputs=begins)
    possible = SamplingParams(structured_outputs=StructuredOutputs(regex="b"))
    bad, good = llm.generate(["A:", "A:"], [impossible, possible], use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error"
    assert "structured_outputs" in (bad.error or "")
    assert good.outputs[0].text == "b"


def test_a_grammar_beyond_its_limits_ends_alone(create_llm: Callable[..., LLM]) -> None:
    llm = create_llm()
    names = {f"property{i}": {"type": "string"} for i in range(2000)}
    schema = {"type": "object", "properties": names}
    large = SamplingParams(structured_outputs=StructuredOutputs(json=schema))
    small = SamplingParams(structured_outputs=StructuredOutputs(choice=["fine"]))
    bad, good = llm.generate(["A", "A"], [large, small], use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error"
    assert bad.failure is not None and bad.failure.kind is FailureKind.GRAMMAR_LIMIT
    assert good.outputs[0].text == "fine"
