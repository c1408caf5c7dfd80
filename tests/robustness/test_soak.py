"""A short soak; ``scripts/soak`` takes an hour, judging slopes and latency too.

What of these rules can be judged in a minute: ``benchmarks/robustness/growth.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.robustness import growth, soak
from tests.servers import start_server
from tests.sizes import sized

#: What a few seconds cannot show on a machine that others use as well.
ONLY_AT_LENGTH = {"server memory", "engine memory", "p99 ITL"}
#: The KV pool's pages are touched for the first time, then no more: MiB.
MAX_GROWTH = {"server_mib": 24, "engine_mib": 64}


def test_saturated_for_some_seconds():
    seconds = sized(6.0, 25.0)
    outcome = soak.run(seconds, 16, warmup=0.4 * seconds, start=start_server)
    assert set(soak.problems(outcome)) <= ONLY_AT_LENGTH, outcome
    assert outcome["requests"] > sized(12, 50) and outcome["left"] > 0, outcome
    for name, limit in MAX_GROWTH.items():
        first, last = outcome[name]
        assert last - first < limit, outcome


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_kept_of_a_request():
    seen = growth.run(5, sized(100, 150), start=start_server)
    if seen.problems():  # What others do on the machine does not come twice; what is kept does.
        seen = growth.run(5, 150, start=start_server)
    assert seen.problems() == [], seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_that_keeps_something_of_each_request_is_caught():
    """Objects in the server; in the engine 1 KiB a step outside Python."""
    leaking = Path(__file__).parent / "leaking"
    seen = growth.run(sized(4, 5), sized(40, 60), site=leaking, start=start_server)
    found = {problem.partition(":")[0] for problem in seen.problems()}
    assert found >= {"server objects", "engine heap_kib"}, seen


def look(objects, heap_kib):
    return {"server": {"objects": objects, "heap_kib": heap_kib, "resident_kib": 0.0}}


def test_growth_counts_when_every_part_after_the_first_has_it():
    looks = [look(*values) for values in ((0, 0), (900, 9), (901, 10), (1200, 30))]
    seen = growth.Growth(looks, [100] * 4)
    assert seen.of_1000_requests() == {
        "server objects": 10, "server heap_kib": 10, "server resident_kib": 0,
    }  # fmt: skip
    looks[2], looks[3] = look(1500, 20), look(2000, 40)
    assert seen.problems() == ["server objects: 5000"]
    seen.errors.append("status 500")
    assert seen.problems()[0] == "error: status 500"


def test_problems_are_named():
    reached = {
        "errors": 0, "engine_restarts": 0, "blocks_in_use_afterwards": 0, "integrity": "ok",
        "exit_code": 0, "server_slope_mib_a_minute": 0.02, "engine_slope_mib_a_minute": -1.0,
        "itl_p99_ratio_last_to_first_third": 1.1,
    }  # fmt: skip
    assert soak.problems(reached) == []
    missed = reached | {"engine_slope_mib_a_minute": 0.06, "errors": 3}
    assert soak.problems(missed) == ["no errors", "engine memory"]
    assert soak._slope([(0.0, 10.0), (30.0, 11.0), (60.0, 12.0)]) == 2.0
