"""Short forms of ``scripts/game_day``: counts and alerts, never times."""

from __future__ import annotations

import pytest

from benchmarks.robustness import alerts, game_day
from tests.servers import start_server
from tests.sizes import sized

#: Half the pool for requests of half the size.
HALF = sized(80, game_day.NUM_BLOCKS)


@pytest.mark.parametrize(
    ("scenario", "num_blocks"),
    [
        pytest.param(
            game_day.exhaustion(*sized((64, 8), (80, 24))),
            game_day.NUM_BLOCKS,
            id="exhaustion",
        ),
        pytest.param(game_day.fewer_sequences(sized(8, 16), HALF), HALF, id="fewer-sequences"),
        pytest.param(
            game_day.thrashing(sized(8, 16), (4, sized(8, 16)), HALF), HALF, id="thrashing"
        ),
    ],
)
def test_a_cache_too_small(scenario, num_blocks):
    outcomes, wrong = game_day.run(scenario, game_day.tight_server(num_blocks), start=start_server)
    assert not wrong, outcomes


def test_rules_that_do_not_hold_are_named(monkeypatch):
    idle = {"alerts_at_rest": [], "wrong": ["429 without Retry-After"], "statuses": {}}
    nothing = dict.fromkeys(("peak_running", "peak_waiting", "recomputed_tokens"), 0)
    seen = {**idle, **nothing, "useful_share": 1.0, "alerts": [], "generated_tokens": 0}
    monkeypatch.setattr(game_day.flood, "send", lambda *_: dict(seen))
    _, wrong = game_day.run(game_day.fewer_sequences(1), start=start_server)
    assert wrong == [
        "8 sequences: 429 without Retry-After",
        "4 sequences: 429 without Retry-After",
        "8 sequences: fewer run than may, for want of blocks",
        "4 sequences: as many run as may, nothing computed twice, no alert",
        "every request is served",
    ]


def test_alerts_are_judged_as_their_expressions_say():
    full = alerts.load("QuireCacheFull")
    usage = "kv_cache_usage_perc"
    assert [full({}, {usage: value}) for value in (0.0, 0.95, 0.951)] == [False, False, True]

    refuses = alerts.load("QuireRefuses")  # 0.1 a second over 5 minutes
    refused = "admission_rejections"
    assert not refuses({refused: 7.0}, {refused: 37.0})
    assert refuses({refused: 7.0}, {refused: 38.0})

    preempts = alerts.load("QuirePreempts")  # a tenth
    again, computed = "preemption_recomputed_tokens", "num_computed_tokens"
    before = {again: 5.0, computed: 50.0}
    assert not preempts(before, before)
    assert not preempts(before, {again: 15.0, computed: 150.0})
    assert preempts(before, {again: 16.0, computed: 150.0})


def test_alerts_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="only gauges, rates and their ratios"):
        alerts.load("QuireSlowTokens")
    with pytest.raises(KeyError):
        alerts.load("QuireDreams")
