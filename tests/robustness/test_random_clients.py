"""Clients that stay, leave and set deadlines against the real server; see ``scripts/chaos``."""

from __future__ import annotations

import pytest

from benchmarks.robustness.chaos import TIGHT, run
from benchmarks.robustness.random_clients import Load
from tests.servers import start_server
from tests.sizes import sized


@pytest.mark.parametrize(
    "settings",
    [[], ["--speculative-config", '{"method": "ngram", "adaptive": false}']],
    ids=["plain", "speculative"],
)
@pytest.mark.parametrize("seed", [1])
def test_every_request_ends_once_and_leaves_nothing_behind(device, seed, settings):
    flags = [*TIGHT, "--device", device, "--threads", "1", *settings]
    with start_server(flags) as server:
        outcome = run(server.wait_ready(), Load(num_requests=sized(150, 300), seed=seed))
        assert outcome["wrong"] == []
        # Something of everything, or the test shows nothing.
        assert outcome["statuses"].keys() >= {"0", "200", "429", "504"}, outcome
        assert outcome["left"] and outcome["preemptions"], outcome
        assert outcome["finish_reasons"].keys() >= {"stop", "length"}, outcome
        assert all(outcome["sequences_ended"][name] for name in ("stop", "abort", "timeout"))
        assert server.end() == 0, server.stderr
    assert "Traceback" not in server.stderr
