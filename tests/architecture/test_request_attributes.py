"""A request's attributes travel in one object: a new one is a field, a caller and a use."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import msgspec

from quire.core.adapter_reference import AdapterReference
from quire.core.client import Client
from quire.core.engine_request import Continuation, EngineRequest, Picture, RangeKey
from quire.core.sampling_params import SamplingParams
from quire.core.speculative_params import SpeculativeParams
from quire.core.structured_outputs import StructuredOutputs
from quire.llm.process.engine_messages import Add, to_engine

ROOT = Path(__file__).parents[2] / "quire"
PATHS = [path for room in ("llm", "engine") for path in sorted((ROOT / room).rglob("*.py"))]
#: Every request has the first four, metrics have the last; much else is named so.
COMMON = {"request_id", "prompt_token_ids", "params", "prompt", "arrival_time"}
ATTRIBUTES = {field.name for field in fields(EngineRequest)} - COMMON | {"cache_salt"}


def names_of(node: ast.AST) -> set[str]:
    """The names that a function takes, a class declares or a call passes by keyword."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        return {one.arg for one in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}
    if isinstance(node, ast.ClassDef):
        targets = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.Call):
        return {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    return set()


def test_nothing_on_a_request_s_way_lists_its_attributes() -> None:
    """What lists one may use it; what lists two hands them on, and would have to list the next."""
    assert PATHS, "no such folder"
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: pass the EngineRequest, not {sorted(listed)}"
        for path in PATHS
        for node in ast.walk(ast.parse(path.read_text()))
        if len(listed := names_of(node) & ATTRIBUTES) > 1
    ]
    assert not found, "\n".join(found)


def test_a_request_is_the_same_at_the_other_side_of_the_process_boundary() -> None:
    """Every field, whatever fields there are; none at its default."""
    params = SamplingParams(
        n=3, temperature=0.5, seed=2**62, stop=["a"], stop_token_ids=[5], logit_bias={7: -1.5},
        bad_words=["b"], bad_words_token_ids=((1, 2), (3,)), allowed_token_ids=[7, 8],
        structured_outputs=StructuredOutputs(choice=["é", "\n"]),
        speculative=SpeculativeParams(method="ngram", num_speculative_tokens=3),
    )  # fmt: skip
    request = EngineRequest(
        "r", [1, 2, 3], params, prompt="p", priority=-2, extra_keys=("salt:x",), deadline=1.5,
        second_text=2, range_keys=(RangeKey(1, 2, "image"),),
        pictures=(Picture(1, 2, "key", bytes(12), 2, 2),),
        client=Client("c", 2.0), arrival_time=0.25, speculative_method="ngram",
        adapter=AdapterReference("a", "/a", "0f", 100),
        push_to=1, is_whole=True,
        continuation=Continuation(True, "p", ("q",)),
    )  # fmt: skip
    for field in fields(request)[3:]:
        assert getattr(request, field.name) != field.default, "give the new field a value here"
    assert to_engine.decode(msgspec.msgpack.encode(Add(request))) == Add(request)
