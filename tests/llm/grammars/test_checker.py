"""Grammars that take hours, gigabytes or the stack: refused in time, at no cost to others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from quire import SamplingParams, StructuredOutputs
from quire.core.errors import CapacityError, RequestError
from quire.llm.grammars.checker import GrammarChecker
from quire.llm.process.proxy import EngineProxy
from quire.settings.config import EngineConfig
from quire.system.sandboxes import Sandbox
from quire.text.grammars.grammar import GrammarCompiler
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.llm.asking import ask
from tests.preforked import children

#: Intersections whose compiling grows exponentially; these would take years.
SLOW: dict[str, dict[str, Any]] = {
    "schema": {
        "json": {"allOf": [{"type": "string", "pattern": f"[a-z]{{{i}}}b"} for i in range(1, 40)]}
    },
    "lark": {
        "grammar": "start: T\nT: " + " & ".join(f"/(.{{{i}}}a|b)*c{{{i}}}.*/" for i in range(1, 60))
    },
}
#: One rule calls the next, 9,000 deep: more stack than a thread has.
DEEP = {
    "grammar": "start: r0\n"
    + "\n".join(f'r{i}: "a" r{i + 1} | "b{i}"' for i in range(9_000))
    + '\nr9000: "c"'
}


#: Found out only after a token or more, or dear from the first one on.
LATE: dict[str, dict[str, Any]] = {
    "one letter": {"regex": "x{99999}"},
    "after a choice": {"regex": "(a|b)x{99999}"},
    "in an item": {"json": {"type": "array", "items": {"const": "y" * 30_000}, "minItems": 1}},
    "rows": {"grammar": 'start: "a"{1000000000}'},
    "states": {"regex": "((((((a{1,9}){1,9}){1,9}){1,9}){1,9}){1,9}){1,9}"},
    "constant": {"choice": ["z" * 50_000]},
}


def running_children() -> list[psutil.Process]:
    return [p for p in children(psutil.Process()) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def compiler(folder: Path) -> GrammarCompiler:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_id is not None
    return GrammarCompiler(tokenizer, [tokenizer.eos_token_id], tokenizer.vocab_size)


@pytest.fixture
def checker(compiler: GrammarCompiler) -> Iterator[GrammarChecker]:
    before = len(running_children())
    checker = GrammarChecker(compiler, 60.0)
    yield checker
    checker.close()
    assert len(running_children()) == before


@pytest.mark.parametrize("kind", SLOW)
def test_what_takes_too_long_is_refused(checker: GrammarChecker, kind: str) -> None:
    checker._seconds = 1.0
    constraint = StructuredOutputs(**SLOW[kind])
    before = {process.pid for process in running_children()}
    with pytest.raises(RequestError, match="within 1 s|more memory") as caught:
        checker.compile(constraint)
    assert caught.value.param == "structured_outputs"
    assert {process.pid for process in running_children()} == before  # none computes on
    assert not checker.knows(constraint)
    checker._seconds = 60.0
    checker.compile(StructuredOutputs(regex="a+"))


@pytest.mark.parametrize("kind", LATE)
def test_what_is_found_out_late_is_refused_at_once(compiler: GrammarCompiler, kind: str) -> None:
    """Each passed and then cost every neighbour a second, or ended in a 500."""
    constraint = StructuredOutputs(**LATE[kind])
    checker = GrammarChecker(compiler, 60.0)
    refusal = pytest.raises(RequestError, match="cannot be enforced|must (need|leave)")
    with closing(checker), refusal as caught:
        checker.compile(constraint)
    assert caught.value.param == "structured_outputs"
    assert checker.knows(constraint)


@pytest.fixture
def time_for_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the time of long grammars alone: a short one takes long only where the machine does."""
    ask = Sandbox.ask

    def patient(self: Sandbox, message: bytes, seconds: float) -> bytes | None:
        return ask(self, message, seconds if len(message) > 500 else 60.0)

    monkeypatch.setattr(Sandbox, "ask", patient)


def kill_next(checker: GrammarChecker, times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the checker's processes be killed from outside while they are asked."""
    killed: list[int] = []
    ask = Sandbox.ask

    def dying(self: Sandbox, message: bytes, seconds: float) -> bytes | None:
        if len(killed) < times:
            killed.append(self.pid)
            os.kill(self.pid, signal.SIGKILL)
        return ask(self, message, seconds)

    monkeypatch.setattr(Sandbox, "ask", dying)
    return killed


def test_a_process_that_dies_costs_no_request_a_refusal(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = kill_next(checker, 1, monkeypatch)
    checker.compile(StructuredOutputs(regex="a+"))
    assert len(killed) == 1


def test_processes_that_keep_dying_are_no_fault_of_the_grammar(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = kill_next(checker, 2, monkeypatch)
    constraint = StructuredOutputs(regex="b+")
    with pytest.raises(CapacityError, match="killed by SIGKILL"):
        checker.compile(constraint)
    assert len(set(killed)) == 2
    assert not checker.knows(constraint)
    checker.compile(constraint)


def test_the_time_is_kept(compiler: GrammarCompiler) -> None:
    """Short enough that the memory cannot be full before."""
    checker = GrammarChecker(compiler, 0.1)
    try:
        with pytest.raises(RequestError, match=r"compile within 0\.1 s"):
            checker.compile(StructuredOutputs(**SLOW["lark"]))
    finally:
        checker.close()


def test_all_tries_and_the_engine_share_the_time(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try had all of it, and so had the engine, which compiles again: 17 s instead of 10."""
    given = []

    def ask(self: Sandbox, message: bytes, seconds: float) -> bytes | None:
        given.append(seconds)
        time.sleep(0.05)
        raise EOFError

    monkeypatch.setattr(Sandbox, "ask", ask)
    checker = GrammarChecker(compiler, 10.0)
    try:
        with pytest.raises(CapacityError):
            checker.compile(StructuredOutputs(regex="a+"))
    finally:
        checker.close()
    assert given[0] == 5.0 and given[1] <= 4.95


def test_what_breaks_its_process_is_refused(checker: GrammarChecker) -> None:
    with pytest.raises(RequestError):
        checker.compile(StructuredOutputs(**DEEP))
    checker.compile(StructuredOutputs(regex="a+"))


def test_answers_are_those_of_the_compiler(
    checker: GrammarChecker, compiler: GrammarCompiler
) -> None:
    for constraint in (
        {"regex": "("},
        {"regex": r"[^\s\S]"},
        {"json": {"type": "integer", "minimum": 5, "maximum": 3}},
        {"json": {"items": {"not": {"type": "null"}}}},
        {"json": "{"},
        {"grammar": "foo"},
    ):
        refused = StructuredOutputs(**constraint)
        with pytest.raises(RequestError) as expected:
            compiler.compile(refused)
        with pytest.raises(RequestError) as found:
            checker.compile(refused)
        assert (str(found.value), found.value.param) == (
            str(expected.value),
            expected.value.param,
        )


def test_each_is_compiled_once(checker: GrammarChecker) -> None:
    good, bad = StructuredOutputs(regex="a"), StructuredOutputs(regex="(")
    assert not checker.knows(good)
    for _ in range(2):
        checker.compile(good)
        with pytest.raises(RequestError):
            checker.compile(bad)
    assert checker.knows(good) and checker.knows(bad)
    _, *counts = checker.stats()["grammar_compilation_time_seconds"]
    assert sum(counts) == 2


@pytest.mark.asyncio
async def test_many_prompts_of_a_body_wait_for_one_check(checker: GrammarChecker) -> None:
    """A body with a new schema and more than 64 prompts was sent away: too many new grammars."""
    good, bad = StructuredOutputs(regex="a+b"), StructuredOutputs(regex="(")
    left = asyncio.create_task(checker.check(good, client_id="a"))
    await asyncio.sleep(0)
    found = [asyncio.create_task(checker.check(good, client_id="a")) for _ in range(200)]
    late = checker.check(good, 0.0, client_id="a")
    refused = [asyncio.create_task(checker.check(bad, client_id="b")) for _ in range(200)]
    assert await late is False
    left.cancel()
    assert await asyncio.gather(*found) == [True] * 200
    errors = await asyncio.gather(*refused, return_exceptions=True)
    assert all(isinstance(error, RequestError) for error in errors) and len(set(errors)) > 1
    _, *counts = checker.stats()["grammar_compilation_time_seconds"]
    assert sum(counts) == 2 and not checker._under_way


@pytest.mark.asyncio
async def test_a_check_that_all_have_left_is_begun_anew(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    async def run(client_id: str, *_: Any) -> None:
        begun.append(client_id)
        if len(begun) == 1:
            await asyncio.Event().wait()

    monkeypatch.setattr(checker._turns, "run", run)
    alone = asyncio.create_task(checker.check(StructuredOutputs(regex="c"), client_id="c"))
    while not begun:
        await asyncio.sleep(0)
    alone.cancel()
    await asyncio.sleep(0)
    assert await checker.check(StructuredOutputs(regex="c"), client_id="c")
    assert begun == ["c", "c"] and not checker._under_way


@pytest.mark.usefixtures("time_for_short_ones")
def test_closing_ends_what_is_being_compiled(compiler: GrammarCompiler) -> None:
    before = {process.pid for process in running_children()}
    checker = GrammarChecker(compiler, 1.0)
    future = checker.threads.submit(checker.compile, StructuredOutputs(**SLOW["lark"]))
    waiting = checker.threads.submit(checker.compile, StructuredOutputs(regex="a"))
    waiting.result(60)
    checker.close()
    assert isinstance(future.exception(60), RequestError)
    assert {process.pid for process in running_children()} == before


@pytest.mark.asyncio
@pytest.mark.usefixtures("time_for_short_ones")
async def test_a_server_refuses_it_and_serves_on(
    folder: Path, device: str, small: dict[str, Any]
) -> None:
    """Others, with known grammars, new ones and none, are answered meanwhile."""
    config = EngineConfig.from_keywords(model=str(folder), device=device, **small)
    engine = EngineProxy(config, grammar_timeout=2.0)

    async def answer(name: str, **constraint: Any) -> str:
        structured = StructuredOutputs(**constraint) if constraint else None
        params = SamplingParams(max_tokens=4, structured_outputs=structured)
        return [o async for o in ask(engine, "a", params, name)][-1].outputs[0].text

    try:
        await answer("first", regex="ab")
        slow = asyncio.create_task(answer("slow", **SLOW["lark"]))
        assert await answer("known", regex="ab") == "ab"
        assert await answer("new", regex="cd") == "cd"
        await answer("free")
        with pytest.raises(RequestError, match="--grammar-compilation-timeout|more memory"):
            await slow  # a machine that is fast enough fills the memory before the time is up
        hasty = SamplingParams(structured_outputs=StructuredOutputs(**SLOW["schema"]))
        stream = ask(engine, "a", hasty, "hasty", deadline=time.monotonic() + 0.01)
        ((output,),) = [o.outputs async for o in stream]
        assert (output.finish_reason, output.token_ids) == ("timeout", [])
        assert await answer("after", regex="ef") == "ef"
        assert engine.num_restarts == 0
    finally:
        await engine.shutdown()
