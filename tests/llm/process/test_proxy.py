"""The engine in a process: equal outputs, and what happens when the process is hurt."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from quire import LLM, SamplingParams
from quire.core.engine_request import EngineRequest
from quire.core.errors import CapacityError, ConfigError, EngineDeadError, ModelLoadError
from quire.core.metrics import METRICS, stem_of
from quire.llm.process.proxy import EngineProxy
from quire.llm.process.restart_delay import RestartDelay
from quire.settings.config import EngineConfig
from tests.llm.asking import ask
from tests.llm.shared_engines import Growth, SharedEngines, sharing
from tests.preforked import Preforked, children
from tests.sizes import sized

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
#: Of a request that is under way when its engine is hurt, at once.
LONG_TOKENS = sized(800, 1900)
LONG = SamplingParams(temperature=0.0, max_tokens=LONG_TOKENS, ignore_eos=True)
#: Of one that never gets to its end: a test that a busy machine stalls still comes in its midst.
ENDLESS = replace(LONG, max_tokens=2000)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def load(folder: Path, device: str, small: dict[str, Any]) -> Callable[..., EngineProxy]:
    """Return a function that starts one."""

    def start(watchdog_timeout: float = 60.0, **settings: Any) -> EngineProxy:
        keywords = {"model": str(folder), "device": device, **small, **settings}
        config = EngineConfig.from_keywords(**keywords)
        return EngineProxy(config, watchdog_timeout=watchdog_timeout)

    return start


@pytest_asyncio.fixture
async def create(load: Callable[..., EngineProxy]) -> AsyncIterator[Callable[..., EngineProxy]]:
    """Return a function that starts one for a test alone."""
    made: list[EngineProxy] = []

    def start(**settings: Any) -> EngineProxy:
        made.append(load(**settings))
        return made[-1]

    yield start
    for engine in made:
        await engine.shutdown()


@pytest.fixture(scope="module")
def shared(load: Callable[..., EngineProxy]) -> Iterator[SharedEngines[EngineProxy]]:
    yield from sharing(load)


@pytest_asyncio.fixture
async def engine(shared: SharedEngines[EngineProxy]) -> AsyncIterator[EngineProxy]:
    """One that tests share; they may kill it, and wait until it is back."""
    async with shared.lease() as get:
        yield await get()


async def ending(engine: EngineProxy, request_id: str, params: SamplingParams = ENDLESS) -> str:
    """Return a request's finish reason, or the name of the error that ended it."""
    try:
        async for output in ask(engine, "abc", params, request_id):
            reason = output.outputs[0].finish_reason
    except (EngineDeadError, CapacityError) as error:
        return type(error).__name__
    assert reason is not None
    return reason


async def wait_until_serving(engine: EngineProxy, not_pid: int) -> None:
    end = time.monotonic() + 60
    while engine.pid in (None, not_pid):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def start_long(
    engine: EngineProxy, num_requests: int, params: SamplingParams = ENDLESS
) -> list[asyncio.Task[str]]:
    """Start requests of which the first has begun to answer."""
    stream = ask(engine, "abc", params, "first")
    await anext(stream)

    async def rest() -> str:
        try:
            async for output in stream:
                reason = output.outputs[0].finish_reason
            return str(reason)
        except EngineDeadError as error:
            return type(error).__name__

    others = [ending(engine, f"r{i}") for i in range(num_requests - 1)]
    tasks = [asyncio.create_task(work) for work in (rest(), *others)]
    await asyncio.sleep(0)
    return tasks


async def hurt(engine: EngineProxy, num_requests: int, number: int) -> tuple[int, list[str]]:
    """Send a signal to an engine in the midst of requests.

    Returns:
        Its process id, and what became of them: ``length`` where the machine stalled the test, and
        one was over before.
    """
    tasks, pid = await start_long(engine, num_requests), engine.pid
    assert pid is not None
    os.kill(pid, number)
    return pid, await asyncio.wait_for(asyncio.gather(*tasks), 60)


async def test_outputs_equal_those_of_llm(engine: EngineProxy, llm: LLM) -> None:
    everything = SamplingParams(
        n=2, seed=3, max_tokens=24, logprobs=2, bad_words=["a"], logit_bias={40: 2.5},
        stop=["\x00"], stop_token_ids=[7], allowed_token_ids=list(range(200)), min_tokens=2,
    )  # fmt: skip
    for params in (GREEDY, everything, SamplingParams(max_tokens=1, prompt_logprobs=1)):
        expected = llm.generate("abcdef", params)[0]
        (*_, output) = [o async for o in ask(engine, "abcdef", params, "1")]
        assert output.outputs == expected.outputs
        assert output.prompt_logprobs == expected.prompt_logprobs


async def test_a_stop_string_ends_the_sequence_in_the_process_too(
    engine: EngineProxy, llm: LLM
) -> None:
    text = llm.generate("abc", replace(LONG, max_tokens=40))[0].outputs[0].text
    params = replace(LONG, stop=[text[20:24]])
    for _ in range(20):  # until it is told in time, however busy the machine is
        grown = Growth(engine)
        (*_, output) = [o async for o in ask(engine, "abc", params, "1")]
        assert output.outputs[0].text == text[: text.index(text[20:24])]
        assert output.outputs[0].finish_reason == "stop"
        # Its place is free, and it did not run on.
        assert "0 used" in await engine.describe_cache()
        if grown("generation_tokens") < LONG_TOKENS:
            break
    else:
        pytest.fail("it ran on")


async def test_the_prefix_cache_is_reset_in_the_process_too(
    engine: EngineProxy,
) -> None:
    prompt = "abcdefgh" * 8
    params = SamplingParams(temperature=0.0, max_tokens=1)
    found = []
    for number in range(3):
        if number == 2:
            await engine.reset_prefix_cache()
        (*_, output) = [o async for o in ask(engine, prompt, params, str(number))]
        found.append(output.num_cached_tokens)
    assert found[0] == found[2] == 0 and found[1] > 0


async def test_a_message_larger_than_the_socket_s_buffer(
    engine: EngineProxy,
) -> None:
    prompt = list(range(3, 250)) * 2000  # refused, but not before it has arrived
    with pytest.raises(ValueError, match="2048"):
        await anext(engine.generate(EngineRequest("1", prompt, GREEDY)))
    assert await ending(engine, "2", GREEDY) == "length"


async def test_who_comes_in_the_midst_of_a_long_prompt_is_next(
    create: Callable[..., EngineProxy], llm: LLM
) -> None:
    prompts = {f"r{i}": [(7 * i + j) % 300 for j in range(20)] for i in range(12)}
    prompts["long"] = [j % 311 for j in range(1800)]
    expected = llm.generate([{"prompt_token_ids": p} for p in prompts.values()], GREEDY)
    engine = create(enable_prefix_caching=False)

    async def run(name: str) -> list[int]:
        async for output in engine.generate(EngineRequest(name, prompts[name], GREEDY)):
            found = output
        return found.outputs[0].token_ids

    for _ in range(20):  # until one comes in the midst of a step
        long = asyncio.create_task(run("long"))
        found = {}
        for name in list(prompts)[:-1]:
            await asyncio.sleep(0.002)
            found[name] = await run(name)
        found["long"] = await long
        for name, other in zip(prompts, expected, strict=True):
            assert found[name] == other.outputs[0].token_ids
        if engine.stats()["dropped_prompt_parts"]:
            break
    else:
        pytest.fail("no part was ever given up")


async def test_killed_under_load(engine: EngineProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threading.Event()
    monkeypatch.setattr(RestartDelay, "after", lambda *_, **__: 0.5 if seen.wait(60) else 0.0)
    pid, endings = 0, ["length"]
    while "length" in endings:
        seen.set()
        await wait_until_serving(engine, pid)
        seen.clear()
        grown = Growth(engine)
        pid, endings = await hurt(engine, 4, signal.SIGKILL)
    assert endings == ["EngineDeadError"] * 4
    with pytest.raises(EngineDeadError, match="restarted"):
        engine.check_health()
    with pytest.raises(CapacityError, match="restarted") as refused:
        await anext(ask(engine, "abc", GREEDY, "early"))
    assert refused.value.retry_after_seconds is not None
    seen.set()  # it comes back
    await wait_until_serving(engine, pid)
    engine.check_health()
    assert await ending(engine, "after", GREEDY) == "length"
    assert grown("engine_restarts") == 1
    assert engine.progress().pending == 0


async def test_no_counter_falls_over_a_restart(create: Callable[..., EngineProxy]) -> None:
    """Nor is one missing for a while: those of a fresh engine are there before its first step."""
    engine = create()
    names = engine.stats().keys()
    await ending(engine, "1", GREEDY)
    seen = [engine.stats()]
    pid = engine.pid
    assert pid is not None
    assert seen[0].keys() == names
    endings: list[str] = []
    while "EngineDeadError" not in endings:  # at once, unless the machine stalled the test
        pid, told = await hurt(engine, 3, signal.SIGKILL)
        endings += told
        while engine.pid in (None, pid):
            seen.append(engine.stats())
            await asyncio.sleep(0.005)
    assert seen[-1]["num_requests_running"] == seen[-1]["kv_cache_usage_perc"] == 0
    await ending(engine, "2", GREEDY)
    seen.append(engine.stats())
    for earlier, later in itertools.pairwise(seen):
        for name, before in earlier.items():
            after = later[name]
            if METRICS[stem_of(name)].kind == "gauge":
                continue
            pairs = (
                zip(before, after, strict=True) if isinstance(before, list) else [(before, after)]
            )
            assert all(a <= b for a, b in pairs), name
    assert seen[-1]["generation_tokens"] >= 16
    num_whole = 2 + endings.count("length")
    assert seen[-1]['request_success{finished_reason="length"}'] == num_whole
    num_lost = endings.count("EngineDeadError")
    assert seen[-1]['request_success{finished_reason="error"}'] == num_lost


async def test_killed_while_idle_and_while_asked(engine: EngineProxy) -> None:
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    question = asyncio.create_task(engine.describe_cache())
    abort = asyncio.create_task(engine.abort("unknown"))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await asyncio.wait_for(question, 60)
    await asyncio.wait_for(abort, 60)
    await wait_until_serving(engine, pid)
    assert await ending(engine, "after", GREEDY) == "length"


async def test_no_progress_is_ended_with_stacks_in_the_log(
    create: Callable[..., EngineProxy], quire_log: list[logging.LogRecord]
) -> None:
    engine = create(watchdog_timeout=5.0)
    await asyncio.sleep(5.5)  # idle is not stuck
    pid, endings, log = 0, ["length"], ""
    # A dump that pauses for half a second is taken for whole: its last thread may be missing.
    while "length" in endings or "engine_loop.py" not in log:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await wait_until_serving(engine, pid)
        pid, endings = await hurt(engine, 3, signal.SIGSTOP)
        log = "".join(record.getMessage() for record in quire_log)
    assert endings == ["EngineDeadError"] * 3
    await wait_until_serving(engine, pid)
    assert not psutil.pid_exists(pid)
    assert "most recent call first" in log
    before = engine.stats()["num_sequences_added"]
    assert await ending(engine, "after", GREEDY) == "length"
    assert engine.stats()["num_sequences_added"] == before + 1, "none of the three is run again"


def test_a_pause_of_the_whole_machine_is_no_stuck_engine(folder: Path, device: str) -> None:
    """A watchdog that only looked at the clock ended every request after a pause of both."""
    code = (
        "import asyncio, os, signal, sys; from quire.settings.config import EngineConfig; "
        "from quire.core.engine_request import EngineRequest; "
        "from quire.core.sampling_params import SamplingParams; "
        "from quire.llm.process.proxy import EngineProxy\n"
        "async def main():\n"
        "    config = EngineConfig.from_keywords(model=sys.argv[1], device=sys.argv[2], threads=1,"
        " memory=64 * 2**20)\n"
        "    engine = EngineProxy(config, watchdog_timeout=5.0)\n"
        "    params = SamplingParams(temperature=0.0, max_tokens=2000, ignore_eos=True)\n"
        "    print(engine.pid, flush=True)\n"
        "    both = [engine.pid, os.getpid()]\n"
        "    async for output in engine.generate(EngineRequest('1', [1, 2, 3], params)):\n"
        "        while both:\n"
        "            os.kill(both.pop(0), signal.SIGSTOP)\n"
        "    print(output.outputs[0].finish_reason, flush=True)\n"
        "    print(engine.num_restarts, flush=True)\n"
        "    await engine.shutdown()\n"
        "asyncio.run(main())"
    )
    server = Preforked(
        [sys.executable, "-c", code, str(folder), device],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with server:
        assert server.stdout is not None
        engine = psutil.Process(int(server.stdout.readline()))
        while psutil.Process(server.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        time.sleep(5.5)  # longer than its patience
        server.send_signal(signal.SIGCONT)
        time.sleep(0.5)  # the watchdog looks twice
        engine.resume()
        reason, num_restarts = server.stdout.read().split()
    assert (reason, num_restarts, server.returncode) == ("length", "0", 0)


async def test_shutdown_of_a_stopped_process_is_bounded(create: Callable[..., EngineProxy]) -> None:
    endings = ["length"]
    while "length" in endings:  # one was over before
        engine = create()
        tasks, pid = await start_long(engine, 2), engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await asyncio.wait_for(engine.shutdown(), 20)
        endings = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert endings == ["abort"] * 2
    assert not psutil.pid_exists(pid)
    with pytest.raises(EngineDeadError, match="shut down"):
        await anext(ask(engine, "abc", GREEDY, "late"))


async def test_signals_to_the_group_leave_the_engine_to_its_server(
    engine: EngineProxy,
) -> None:
    tasks = await start_long(engine, 1, LONG)
    pid = engine.pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == ["length"]
    assert engine.pid == pid


def test_the_engine_dies_with_its_server(folder: Path, device: str) -> None:
    code = (
        "import sys; from quire.settings.config import EngineConfig; "
        "from quire.llm.process.proxy import EngineProxy; "
        "config = EngineConfig.from_keywords(model=sys.argv[1], device=sys.argv[2], threads=1, "
        "memory=64 * 2**20); "
        "print(EngineProxy(config).pid, flush=True); sys.stdin.read()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), device],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with server:
        assert server.stdout is not None
        child = psutil.Process(int(server.stdout.readline()))
        server.kill()
        child.wait(60)


def test_what_cannot_be_loaded_is_said_as_in_process(
    folder: Path, device: str, small: dict[str, Any], tmp_path: Path
) -> None:
    before = children(psutil.Process())
    for settings, kind, text in (
        ({"memory": 1000}, ConfigError, "--memory"),
        ({"model": str(tmp_path)}, ModelLoadError, str(tmp_path)),
    ):
        keywords = {"model": str(folder), "device": device, **small, **settings}
        with pytest.raises(kind, match=text):
            EngineProxy(EngineConfig.from_keywords(**keywords))
    assert children(psutil.Process()) == before
