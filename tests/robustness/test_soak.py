"""A short soak; ``scripts/soak`` takes a quarter of an hour, judging slopes and latency too."""

from __future__ import annotations

from benchmarks.robustness import soak

#: What a few seconds cannot show on a machine that others use as well.
ONLY_AT_LENGTH = {"server memory", "engine memory", "p99 ITL"}
#: The KV pool's pages are touched for the first time, then no more: MiB.
MAX_GROWTH = {"server_mib": 24, "engine_mib": 64}


def test_saturated_for_some_seconds():
    outcome = soak.run(25.0, 16, warmup=10.0)
    assert set(soak.problems(outcome)) <= ONLY_AT_LENGTH, outcome
    assert outcome["requests"] > 50 and outcome["left"] > 0, outcome
    for name, limit in MAX_GROWTH.items():
        first, last = outcome[name]
        assert last - first < limit, outcome


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
