"""Which texts each kind of constraint allows, and what is refused or bounded."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import RequestError
from quire.core.structured_outputs import MAX_CONSTRAINT_LENGTH, StructuredOutputs
from quire.text.grammars import grammar
from quire.text.grammars.grammar import GrammarCompiler
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tools.random_checkpoint import PRESETS, random_checkpoint


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token per byte."""
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(path, PRESETS["tiny-llama"])
    return load_tokenizer(path)


@pytest.fixture
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    assert tokenizer.eos_token_id is not None
    return GrammarCompiler(tokenizer, [tokenizer.eos_token_id], tokenizer.vocab_size + 70)


def allows(compiler: GrammarCompiler, tokenizer: Tokenizer, text: str, **constraint: Any) -> bool:
    """Return whether ``text`` may be generated and end there."""
    matcher = compiler.create_matcher(StructuredOutputs(**constraint))
    mask = matcher.allowed(tokenizer.encode(text, add_special_tokens=False))
    assert len(mask) == (tokenizer.vocab_size + 70 + 31) // 32 * 4
    eos = tokenizer.eos_token_id
    assert eos is not None
    return bool(mask[eos >> 3] >> (eos & 7) & 1)


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        ({"choice": ["a.b", "ab"]}, ["a.b", "ab"], ["axb", "a", "abc", ""]),
        ({"choice": ['é\n"x', "\\"]}, ['é\n"x', "\\"], ["é", "x"]),
        ({"regex": "[0-9]+|x"}, ["1", "123", "x"], ["", "xx", "1x"]),
        ({"regex": "^ab$"}, ["ab"], ["a", "xab"]),
        ({"json_object": True}, ["{}", '{"a": [1, 2e5]}', '{\n  "a": {}\n}'], ["[]", "1", "{"]),
        ({"json": {}}, ["{}", "[1]", '"x"', "null", "-1.5e3"], ["", "nul", "01"]),
        ({"json": '{"type": "null"}'}, ["null"], ["0"]),
        ({"grammar": 'start: "a" | "b" start'}, ["a", "bba"], ["b", "ab"]),
        ({"grammar": 'root ::= "a" | "b" root'}, ["a", "bba"], ["b", "ab"]),
    ],
)
def test_kinds(
    compiler: GrammarCompiler, tokenizer: Tokenizer, constraint: Any, good: Any, bad: Any
) -> None:
    for text in good:
        assert allows(compiler, tokenizer, text, **constraint), text
    for text in bad:
        assert not allows(compiler, tokenizer, text, **constraint), text


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "pattern": "b", "minLength": 3}, ["abc", "abbb"], ["b", "ab", "aaa"]),
        ({"type": "string", "maxLength": 1}, ["é", "😀", "\\n", ""], ["ab"]),
        ({"type": "object", "required": ["a"]}, ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"b":1}']),
        ({"properties": {"a": {"type": "null"}}}, ['{"a":null}', '{"b":1}', "3"], ['{"a":1}']),
        ({"patternProperties": {"^a": {"type": "null"}}}, ['{"ab":null}', '{"b":1}'], ['{"a":1}']),
    ],
)
def test_keywords_that_others_drop(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, good: Any, bad: Any
) -> None:
    def text(value: str) -> str:
        return f'"{value}"' if schema.get("type") == "string" else value

    for value in good:
        assert allows(compiler, tokenizer, text(value), json=schema), value
    for value in bad:
        assert not allows(compiler, tokenizer, text(value), json=schema), value


@pytest.mark.parametrize(
    ("name", "spelling"), [("a", "\\u0061"), ("a/b", "a\\/b"), ("é", "\\u00e9")]
)
def test_no_spelling_of_a_name_slips_past_its_schema(
    compiler: GrammarCompiler, tokenizer: Tokenizer, name: str, spelling: str
) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}}
    assert allows(compiler, tokenizer, f'{{"{name}":1}}', json=schema)
    assert not allows(compiler, tokenizer, f'{{"{spelling}":"x"}}', json=schema)


@pytest.mark.parametrize(
    "constraint",
    [
        {"json": "{"},
        {"json": "3"},
        {"json": "[" * 100_000},
        {"json": {"type": "array", "uniqueItems": True}},
        {"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
        {"json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}},
        {"json": {"type": "integer", "minimum": 5, "maximum": 3}},
        {"json": {"type": "string", "pattern": "(?=a)"}},
        {"json": {"const": float("nan")}},
        {"regex": "("},
        {"regex": "(?=a)b"},
        {"regex": r"[^\s\S]"},
        {"grammar": "foo"},
        {"grammar": 'start: start "a"'},
        {"grammar": "root ::= foo"},
        {"grammar": 'root ::= "a'},
    ],
    ids=lambda constraint: str(constraint)[:40],
)
def test_refused(compiler: GrammarCompiler, constraint: Any) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputs(**constraint))
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "constraint",
    [
        {},
        {"json": {}, "regex": "a"},
        {"json_object": False},
        {"choice": []},
        {"choice": ["a", ""]},
        {"regex": ""},
        {"grammar": "x" * (MAX_CONSTRAINT_LENGTH + 1)},
        {"json": {"a": {1, 2}}},
        {"json": True},
        {"regex": 3},
        {"choice": "ab"},
        {"choice": [1]},
        {"json_object": 1},
    ],
    ids=lambda constraint: str(constraint)[:40],
)
def test_not_one_constraint(constraint: Any) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputs(**constraint)
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "constraint",
    [
        {"json": {"enum": [f"value {i}" for i in range(10_000)]}},
        {"choice": [f"value {i * 7919 % 100_003}" for i in range(10_000)]},
        {"regex": "((((.{1,100}){1,100}){1,100}){1,100})x"},
        {"regex": "(a|b)*a(a|b){60}c"},
        {"regex": "(x+x+)+y"},
        {"json": {"type": "string", "pattern": "^(((a{1,100}){1,100}){1,100})$"}},
        {"json": {"type": "string", "maxLength": 100_000}},
        {
            "json": {
                "$defs": {
                    **{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)},
                    "d30": {"type": "integer"},
                },
                "$ref": "#/$defs/d0",
            }
        },
    ],
    ids=["enum", "choice", "repeats", "states", "backtracking", "pattern", "length", "references"],
)
def test_hostile_constraints_end_within_their_limits(
    compiler: GrammarCompiler, tokenizer: Tokenizer, constraint: Any
) -> None:
    """Compiled or refused, and then 50 tokens further or stopped with a reason."""
    try:
        matcher = compiler.create_matcher(StructuredOutputs(**constraint))
    except RequestError:
        return
    output: list[int] = []
    for _ in range(50):
        mask = matcher.allowed(output[matcher.num_taken :])
        ids = [i for i in range(tokenizer.vocab_size) if mask[i >> 3] >> (i & 7) & 1]
        if not ids or ids == [tokenizer.eos_token_id]:
            assert ids or matcher.error
            return
        output.append(ids[len(output) * 7 % len(ids)])


def test_exponential_products_are_refused(compiler: GrammarCompiler) -> None:
    def part(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {"const": 1}}, "required": [name]}

    schema = {"allOf": [{"anyOf": [part(f"x{i}"), part(f"y{i}")]} for i in range(14)]}
    with pytest.raises(RequestError, match="too large"):
        compiler.compile(StructuredOutputs(json=schema))


def test_equal_constraints_are_compiled_once(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "MAX_CACHED", 2)
    for regex in ("a", "b", "a", "b", "c", "c"):
        compiler.create_matcher(StructuredOutputs(regex=regex))
    seconds, *counts = compiler.stats()["grammar_compilation_time_seconds"]
    assert seconds > 0 and sum(counts) == 3
    compiler.compile(StructuredOutputs(regex="a"))  # the least recent one was dropped
    assert sum(compiler.compilation_time.counts) == 4


def test_matchers_do_not_feel_each_other(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("ab", add_special_tokens=False)
    constraint = StructuredOutputs(choice=["ab", "cd"])
    one, other = compiler.create_matcher(constraint), compiler.create_matcher(constraint)
    start = one.allowed([])
    assert any(one.allowed([a])) and one.allowed([]) != start
    assert other.allowed([]) == start
    resumed = compiler.create_matcher(constraint)  # after a preemption, all tokens at once
    assert resumed.allowed([a, b]) == one.allowed([b])
    assert any(one.allowed([])) and one.num_taken == resumed.num_taken == 2


def test_a_forbidden_token_is_an_error_of_its_matcher(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.create_matcher(StructuredOutputs(regex="a"))
    assert not any(matcher.allowed(tokenizer.encode("b", add_special_tokens=False)))
    assert matcher.error


def test_no_special_token_and_no_unknown_id_is_ever_allowed(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    mask = compiler.create_matcher(StructuredOutputs(regex="(?s).*")).allowed([])
    ids = {i for i in range(len(mask) * 8) if mask[i >> 3] >> (i & 7) & 1}
    assert ids & tokenizer.pieces.special_ids == {tokenizer.eos_token_id}
    assert max(ids) < tokenizer.vocab_size


def test_a_model_without_an_end_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="end-of-sequence"):
        GrammarCompiler(tokenizer, [], 300).compile(StructuredOutputs(regex="a"))


def test_many_threads_at_once(compiler: GrammarCompiler) -> None:
    def work(first: int) -> None:
        for i in range(20):
            compiler.create_matcher(StructuredOutputs(regex=f"x{(first + i) % 7}")).allowed([])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    masks = {compiler.create_matcher(StructuredOutputs(regex="x1")).allowed([]) for _ in range(3)}
    assert len(masks) == 1


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"json": '{"type": "object", "properties": {"é": {"type": "integer"}}}'}, '{"é": 12}'),
        ({"regex": "[a-f]+x?(é|ü){2}"}, "abcxéü"),
        ({"grammar": 'start: "a" start "b" | "c"'}, "aaacbbb"),
        ({"choice": ["one", "once"], "reasoning_end": "</t>"}, "so</t>once"),
    ],
)
def test_a_rollback_leaves_no_trace(
    compiler: GrammarCompiler, tokenizer: Tokenizer, constraint: Any, text: str
) -> None:
    """After any further tokens, allowed or not, the same may follow as before."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.eos_token_id is not None
    straight, back_and_forth = (
        compiler.create_matcher(StructuredOutputs(**constraint)) for _ in range(2)
    )
    for i in range(len(ids) + 1):
        expected = straight.allowed(ids[i - 1 : i] if i else [])
        assert back_and_forth.allowed(ids[i - 1 : i] if i else []) == expected
        for tail in ([], ids[::-1], [5, 6, 7], [tokenizer.eos_token_id, 5]):
            further = [*ids[i : i + 3], *tail]
            for token_id in further:
                back_and_forth.allowed([token_id])
            assert back_and_forth.num_taken == i + len(further)
            assert back_and_forth.error or tail[:1] != [tokenizer.eos_token_id]
            back_and_forth.rollback(len(tail))
            back_and_forth.rollback(len(further) - len(tail))
            assert (back_and_forth.num_taken, back_and_forth.error) == (i, None)
        assert back_and_forth.allowed([]) == expected
