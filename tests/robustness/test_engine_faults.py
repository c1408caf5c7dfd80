"""What goes wrong in the processes; docs/robustness.md states each outcome."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest

from tests.robustness.conftest import (
    LONG,
    MEDIUM,
    PATH,
    SHORT,
    Crowd,
    ask,
    assert_nothing_left,
    is_ready,
    wait_for,
    whole,
)

MIB = 2**20


def assert_all_told(endings, word):
    """Every client got a typed ending that says what happened."""
    for ending in endings:
        assert ending.error is not None and ending.error["code"] == 503, ending
        assert ending.error["type"] == "ServiceUnavailableError"
        assert word in ending.error["message"], ending


def assert_recovers(url):
    """The engine is started again and leaves no trace."""
    wait_for(lambda: is_ready(url))
    assert ask(url, SHORT).reason == "length"
    assert_nothing_left(url)


def test_engine_killed(start):
    server = start()
    url = server.wait_ready()
    crowd = Crowd(url, [LONG] * 8)
    engine = server.engine()
    crowd.catch(engine)
    engine.kill()
    assert_all_told(crowd.endings(), "SIGKILL")
    refused = ask(url, SHORT)
    if refused.status != 200:  # it comes back in half a second or more
        assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1
    assert_recovers(url)
    assert server.end() == 0


def test_kernel_raises(start, faults):
    server = start(**faults.environment)
    url = server.wait_ready()
    crowd = Crowd(url, [LONG] * 8)
    engine = server.engine()
    crowd.catch(engine)
    faults.arm("kernel")
    engine.resume()
    assert_all_told(crowd.endings(), "injected fault")
    assert_recovers(url)
    assert server.end() == 0
    assert "Traceback" in server.stderr, "where it was raised"


def test_allocation_fails_in_the_engine(start):
    """Address space runs out while it computes: the same as any failed step."""
    server = start("--max-num-batched-tokens", "2048")
    url = server.wait_ready()
    engine = server.engine()
    assert ask(url, SHORT).reason == "length"
    crowd = Crowd(url, [LONG] * 4)
    crowd.wait_until_running()
    engine.rlimit(resource.RLIMIT_AS, (engine.memory_info().vms,) * 2)
    hungry = {"prompt": [65] * 1900, "max_tokens": 100, "prompt_logprobs": 20, "logprobs": 20}
    ending = ask(url, hungry)
    assert ending.status in (200, 503)
    # A request that finds no memory may bring the engine down, and then all are told; one that
    # still finds some is answered. No request waits for ever, and the next engine has its memory.
    for other in crowd.endings():
        assert other.reason == "length" or other.error["code"] == 503, other
    assert ending.status == 503, "the limit was not felt: the test shows nothing"
    assert_recovers(url)
    assert server.end() == 0


def test_allocation_fails_in_the_server(start):
    server = start()
    url = server.wait_ready()
    process = psutil.Process(server.popen.pid)
    crowd = Crowd(url, [MEDIUM] * 4)
    crowd.wait_until_running()
    before = process.rlimit(resource.RLIMIT_AS)
    process.rlimit(resource.RLIMIT_AS, (64 * MIB, before[1]))
    large = b'{"prompt": "a", "max_tokens": 1, "padding": "' + b"a" * (30 * MIB) + b'"}'

    def post_large(_):
        headers = {"content-type": "application/json"}
        try:
            return httpx2.post(f"{url}{PATH}", content=large, headers=headers, timeout=60)
        except httpx2.TransportError as error:
            # uvloop closes a connection whose bytes it has no memory to receive.
            assert not isinstance(error, httpx2.TimeoutException)
            return None

    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(post_large, range(4)))
    answers = [answer for answer in ended if answer is not None]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert refused or None in ended, "the limit was not felt: the test shows nothing"
    assert all("memory" in answer.json()["error"]["message"] for answer in refused)
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert [ending.reason for ending in crowd.endings()] == ["length"] * 4
    process.rlimit(resource.RLIMIT_AS, before)
    assert ask(url, SHORT).reason == "length"
    assert_nothing_left(url)
    assert server.end() == 0


def test_step_is_slow(crowded_server):
    """Slower than any deadline, faster than the watchdog: every request gets the usual answer."""
    url = crowded_server.address
    expected = whole(url, MEDIUM)
    crowd = Crowd(url, [MEDIUM] * 6)
    engine = crowded_server.engine()
    crowd.catch(engine)
    late = ask(url, MEDIUM | {"timeout": 0.5})
    assert late.status == 504 and late.error["type"] == "DeadlineExceededError"
    assert is_ready(url) and httpx2.get(f"{url}/health/live").status_code == 200
    engine.resume()
    assert {(e.text, e.reason) for e in crowd.endings()} == {(expected.text, "length")}
    assert_nothing_left(url)


def test_an_engine_that_stands_still_is_not_ready_long_before_it_is_replaced(start):
    server = start("--watchdog-timeout", "120", "--ready-timeout", "1")
    url = server.wait_ready()
    engine = server.engine()
    engine.suspend()  # before its first step, too
    crowd = Crowd(url, [SHORT])
    wait_for(lambda: not is_ready(url))
    assert httpx2.get(f"{url}/health/live").status_code == 200
    wait_for(lambda: "--ready-timeout 1" in httpx2.get(f"{url}/health/ready").text)
    engine.resume()
    wait_for(lambda: is_ready(url))
    assert [ending.reason for ending in crowd.endings()] == ["length"]
    crowd = Crowd(url, [LONG])
    crowd.catch(engine)
    wait_for(lambda: not is_ready(url))
    engine.resume()
    wait_for(lambda: is_ready(url))
    assert [ending.reason for ending in crowd.endings()] == ["length"]
    assert_nothing_left(url)
    assert server.end() == 0 and "it is started again" not in server.stderr


def test_engine_is_stuck(start):
    server = start("--watchdog-timeout", "5")
    url = server.wait_ready()
    crowd = Crowd(url, [LONG] * 6)
    crowd.catch(server.engine())
    assert_all_told(crowd.endings(), "--watchdog-timeout")
    assert_recovers(url)
    assert server.end() == 0
    assert "most recent call first" in server.stderr, "the stacks"


def test_engine_is_stuck_and_every_client_has_left(start):
    """Requests that were given up counted as no work, so the watchdog saw no stuck engine."""
    server = start("--watchdog-timeout", "5")
    url = server.wait_ready()
    engine = server.engine()
    engine.suspend()
    assert ask(url, SHORT | {"timeout": 0.1}).status == 504
    engine.wait(60)
    assert_recovers(url)
    assert server.end() == 0


@pytest.mark.parametrize("fault", ["tokenizer", "tokenizer-panic"])
def test_tokenizer_raises(faulty_server, fault):
    server, faults = faulty_server
    url, line = server.address, len(server.lines)
    expected = whole(url, MEDIUM)
    crowd = Crowd(url, [MEDIUM] * 4)
    crowd.wait_until_running()
    for stream in (False, True):
        faults.arm(fault)
        victim = ask(url, SHORT | {"stream": stream})
        assert victim.status == 500 and victim.error["type"] == "InternalServerError"
        assert "injected" not in victim.error["message"], "internals are for the log"
    assert {ending.text for ending in crowd.endings()} == {expected.text}
    wait_for(lambda: "injected fault" in "".join(server.lines[line:]))
    assert_nothing_left(url)


def test_detokenizer_raises(faulty_server):
    """One request's text cannot be made; it used to take the engine down for all."""
    server, faults = faulty_server
    url = server.address
    expected = whole(url, MEDIUM)
    crowd = Crowd(url, [MEDIUM] * 6)
    engine = server.engine()
    crowd.catch(engine)
    faults.arm("detokenizer")
    engine.resume()
    endings = crowd.endings()
    assert faults.has_struck("detokenizer")
    (victim,) = [ending for ending in endings if ending.reason is None]
    assert victim.error["code"] == 500
    assert {ending.text for ending in endings if ending is not victim} == {expected.text}
    assert httpx2.get(f"{url}/health/ready").status_code == 200
    assert_nothing_left(url)
