"""Two engine processes as one engine: equal tokens, and what happens when one is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.beam_search_params import BeamSearchParams
from quire.core.engine_request import EngineRequest
from quire.core.errors import CapacityError, ConfigError, EngineDeadError, ModelLoadError
from quire.core.metrics import add_up
from quire.core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from quire.core.sampling_params import RequestOutputKind
from quire.llm.beams.beam_search_stream import search_beams
from quire.llm.load_state import Loading
from quire.llm.process.proxy import EngineProxy
from quire.llm.process.restart_delay import RestartDelay
from quire.llm.replicas.load_replicas import divide, load_replicas
from quire.llm.replicas.replicated_engine import ReplicatedEngine
from quire.llm.replicas.resumed_outputs import GivenOutputs
from quire.settings.config import EngineConfig, ModelOptions
from quire.system.machine import read_machine
from tests.llm.asking import ask
from tests.llm.shared_engines import Growth
from tests.sizes import sized

DELTA = RequestOutputKind.DELTA
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
#: Of a request that is under way, a hundred times as long as it takes to kill its engine.
LONG_TOKENS = sized(600, 1900)
LONG = SamplingParams(temperature=0.0, max_tokens=LONG_TOKENS, ignore_eos=True)


@pytest.fixture
def create(
    load_engines: Callable[..., ReplicatedEngine], folder: Path, device: str, small: dict[str, Any]
) -> Callable[..., ReplicatedEngine]:
    """Return a function that starts two engines, or more."""

    def start(count: int = 2, **settings: Any) -> ReplicatedEngine:
        keywords = {"model": str(folder), "device": device, **small, **settings}
        return load_engines(EngineConfig.from_keywords(**keywords, data_parallel_size=count))

    return start


async def answer(engine: ReplicatedEngine, text: str, params: SamplingParams, name: str) -> Any:
    """Return the last output, or the name of the error that ended it."""
    try:
        (*_, output) = [o async for o in ask(engine, text, params, name)]
    except (EngineDeadError, CapacityError) as error:
        return type(error).__name__
    return output


async def test_tokens_are_those_of_one_engine_whichever_computes_them(
    create: Callable[..., ReplicatedEngine], create_llm: Callable[..., LLM]
) -> None:
    engine, llm = create(), create_llm()
    for params in (GREEDY, SamplingParams(max_tokens=8), SamplingParams(n=2, seed=3, max_tokens=8)):
        for number in range(4):
            expected = llm.generate(f"text {number}", params)[0]
            output = await answer(engine, f"text {number}", params, f"r{number}")
            assert output.outputs == expected.outputs
    each = [add_up(one.stats(), "generation_tokens") for one in engine.engines]
    assert min(each) >= sum(each) / 4, "both compute"
    assert add_up(engine.stats(), "generation_tokens") == sum(each)
    assert 'num_requests_running{engine="1"}' in engine.stats()
    assert "engine 1" in await engine.describe_cache()
    assert engine.progress().pending == 0


async def test_prefixes_are_found_where_they_are(create: Callable[..., ReplicatedEngine]) -> None:
    engine = create(num_gpu_blocks_override=200)
    texts = [f"{number}" * 200 for number in range(8)]
    for turn in range(4):
        work = [answer(engine, text + str(turn), GREEDY, text) for text in texts]
        for output in await asyncio.gather(*work):
            assert output.num_cached_tokens >= (192 if turn else 0)
    await engine.reset_prefix_cache()
    output = await answer(engine, texts[0], GREEDY, "again")
    assert output.num_cached_tokens == 0


async def test_a_killed_engine_costs_no_request_that_had_no_output(
    create: Callable[..., ReplicatedEngine],
) -> None:
    engine = create(max_num_seqs=2)
    victim = engine.engines[0]
    num_lost = 0
    for attempt in range(10):
        grown = Growth(victim)
        works = [
            asyncio.create_task(answer(engine, f"a{i}", LONG, f"{attempt}-{i}")) for i in range(8)
        ]
        while not victim.progress().pending or grown("generation_tokens") < 4:
            if all(work.done() for work in works):
                break
            await asyncio.sleep(0.01)
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        short = await answer(engine, "abc", GREEDY, f"{attempt}-short")
        assert len(short.outputs[0].token_ids) == 8
        engine.check_health()
        ended = await asyncio.gather(*works)
        num_lost = ended.count("EngineDeadError")
        whole = [output for output in ended if output != "EngineDeadError"]
        assert all(len(output.outputs[0].token_ids) == LONG_TOKENS for output in whole)
        while victim.pid is None:
            await asyncio.sleep(0.05)
        if num_lost:  # else all had ended before the kill
            break
    assert 1 <= num_lost <= 2
    before = add_up(victim.stats(), "generation_tokens")
    for number in range(4):
        await answer(engine, f"new {number}", GREEDY, f"n{number}")
    assert add_up(victim.stats(), "generation_tokens") > before, "it gets requests again"


async def test_a_killed_engine_costs_no_answer_that_is_read_as_a_whole(
    create: Callable[..., ReplicatedEngine],
) -> None:
    """An answer whose client had seen nothing ended with a 503, since its first token was made.

    Another engine computes it again, and what it adds is checked to follow what was there.
    """
    engine = create(max_num_seqs=2)
    victim = engine.engines[0]
    sampled = SamplingParams(
        n=2, seed=3, max_tokens=LONG_TOKENS, ignore_eos=True, logprobs=1, output_kind=DELTA
    )

    async def whole(name: str) -> RequestOutput:
        first: RequestOutput | None = None
        async for output in ask(engine, "abc", sampled, name, is_whole=True):
            assert first is None or not first.finished, "it ends once"
            if first is None:
                first = output
            else:
                first.merge(output)
        assert first is not None
        return first

    expected = await whole("alone")
    for attempt in range(10):
        grown = Growth(victim)
        works = [asyncio.create_task(whole(f"{attempt}-{i}")) for i in range(3)]
        while grown("generation_tokens") < 4 and not all(work.done() for work in works):
            await asyncio.sleep(0.01)
        num_under_way = victim.progress().pending
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        for output in await asyncio.gather(*works):
            assert output.finished and output.outputs == expected.outputs
        while victim.pid is None:
            await asyncio.sleep(0.05)
        if num_under_way:  # else all had ended before the kill
            break
    assert num_under_way


async def test_another_engines_answer_is_not_given_where_it_differs() -> None:
    given = GivenOutputs()
    assert not given
    given.add(delta([1, 2], "ab"))
    given.add(replace(delta([3], "c"), metrics=RequestMetrics(1.0, 2.0, 3.0, 4.0)))

    async def answers(*deltas: RequestOutput) -> AsyncGenerator[RequestOutput, None]:
        for one in deltas:
            yield one

    same = [delta([1], "a"), delta([2, 3, 4], "bcd"), delta([5], "e", finish_reason="stop")]
    same[-1].metrics = RequestMetrics(7.0, 7.0, 8.0, 9.0)
    (rest,) = [output async for output in given.rest(answers(*same))]
    assert rest.metrics == RequestMetrics(1.0, 2.0, 3.0, 9.0), "it began when the first one did"
    assert rest.finished and rest.outputs == [
        CompletionOutput(0, "de", [4, 5], finish_reason="stop")
    ]
    (late,) = [o async for o in given.rest(answers(delta([1, 2], "ab", finish_reason="timeout")))]
    assert late.outputs == [CompletionOutput(0, finish_reason="timeout")]
    for other in (([1, 2, 9], "abz"), ([1, 2, 3, 4], "abz"), ([1, 2], "ab")):
        with pytest.raises(EngineDeadError, match="not its own"):
            await anext(given.rest(answers(delta(*other, finish_reason="stop"))))


def delta(token_ids: list[int], text: str, finish_reason: str | None = None) -> RequestOutput:
    completion = CompletionOutput(0, text, token_ids, finish_reason=finish_reason)
    return RequestOutput("r", None, [7], None, [completion], finish_reason is not None)


async def test_a_request_is_tried_once_more_and_not_on_every_engine(
    create: Callable[..., ReplicatedEngine],
) -> None:
    """It may be what two engines died of: the third one lives on."""
    engine = create(3)
    living = {number: one.pid for number, one in enumerate(engine.engines)}
    for pid in living.values():
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # they take it, and give no output
    work = asyncio.create_task(answer(engine, "abc", GREEDY, "deadly"))
    for _ in range(2):
        while not (held := [n for n in living if engine.engines[n].progress().pending]):
            await asyncio.sleep(0.01)
        os.kill(living.pop(held[0]), signal.SIGKILL)  # type: ignore[arg-type]
    ((_, third),) = living.items()
    assert third is not None
    os.kill(third, signal.SIGCONT)
    assert await asyncio.wait_for(work, 60) == "EngineDeadError"
    assert third in [one.pid for one in engine.engines], "it was not asked"


async def test_without_any_engine_requests_are_told_to_come_again(
    create: Callable[..., ReplicatedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestartDelay, "after", lambda *_, **__: 60.0)  # not before it has looked
    engine = create()
    for one in engine.engines:
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
    while any(one.pid is not None for one in engine.engines):
        await asyncio.sleep(0.01)
    with pytest.raises(CapacityError, match="being restarted"):
        await anext(ask(engine, "abc", GREEDY, "1"))
    with pytest.raises(EngineDeadError):
        engine.check_health()
    await engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await anext(ask(engine, "abc", GREEDY, "2"))


async def test_aborts_and_views_reach_the_engine(create: Callable[..., ReplicatedEngine]) -> None:
    engine = create()
    view = engine.view(ModelOptions(model=engine.config.model.model))
    reasons: list[Any] = []
    while not reasons or reasons[-1] == "length":  # it was over before
        stream = ask(view, "abc", LONG, "r")
        await anext(stream)
        await view.abort("r")
        reasons = [output.outputs[0].finish_reason async for output in stream]
    assert reasons[-1] == "abort"
    assert add_up(view.stats(), "num_requests_running") == 0
    await engine.abort("unknown")


async def test_beams_are_those_of_one_engine_and_nothing_of_them_is_kept(
    create: Callable[..., ReplicatedEngine], llm: LLM
) -> None:
    engine, params = create(), BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    tokens = engine.tokenizer.encode("a text")
    expected = llm.beam_search([{"prompt_token_ids": tokens}], params)[0]
    best = [beam.tokens[len(tokens) :] for beam in expected.sequences]
    for name in ("a", "b"):
        request = EngineRequest(name, tokens, SamplingParams(temperature=0.0))
        (output,) = [o async for o in search_beams(engine, request, params)]
        assert [list(one.token_ids) for one in output.outputs] == best
    assert engine._places == {}, "ids of beams add up otherwise"


def test_engines_divide_memory_and_cores() -> None:
    machine = read_machine()
    config = EngineConfig.from_keywords(data_parallel_size=2, memory=1000)
    own = divide(config, machine, 2)
    assert own.cache.memory == 500 and own.parallel.data_parallel_size == 1
    assert own.parallel.threads == max(1, machine.num_cores // 2)
    given = divide(EngineConfig.from_keywords(data_parallel_size=2, threads=3), machine, 2)
    assert given.parallel.threads == 3
    assert given.cache.memory == int(0.9 * machine.free_bytes) // 2


def test_one_that_cannot_be_loaded_ends_the_others(folder: Path, tmp_path: Path) -> None:
    loaded: list[EngineProxy] = []

    def load(number: int, config: EngineConfig, loading: Loading) -> EngineProxy:
        if number:
            raise ModelLoadError("[load] no.")
        loaded.append(EngineProxy(config, loading=loading))
        return loaded[0]

    config = EngineConfig.from_keywords(model=str(folder), data_parallel_size=2, memory=2**29)
    with pytest.raises(ModelLoadError, match="no"):
        load_replicas(config, read_machine(), Loading(), load)
    assert not loaded or loaded[0].pid is None


def test_only_a_server_has_several(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--data-parallel-size must be 1 here"):
        LLM(str(folder), data_parallel_size=2)
    with pytest.raises(ConfigError, match="Leave --enable-expert-parallel out"):
        LLM(str(folder), data_parallel_size=2, enable_expert_parallel=True)
