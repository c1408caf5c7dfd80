"""What a kill is said to have cost, of what clients saw."""

from __future__ import annotations

from benchmarks.robustness.replica_kills import Ended, Seen


def test_requests_are_counted_with_the_kill_that_they_follow() -> None:
    """All kills were counted together, which came before engines were back from the last one."""
    error = "ServiceUnavailableError"
    seen = Seen([
        (0.5, Ended("whole", "before all")),
        (1.1, Ended(error)),
        (1.2, Ended(error, retry_seconds=2.0)),
        (3.3, Ended("whole", "after")),
        (13.1, Ended(error)),
        (13.1, Ended(error)),
    ])  # fmt: skip
    costs = seen.costs([1.0, 13.0, 25.0])
    failed, refused = costs["failed_requests"], costs["refused_requests"]
    assert (failed["min"], failed["median"], failed["max"]) == (0.0, 1.0, 2.0)
    assert (refused["min"], refused["median"], refused["max"]) == (0.0, 0.0, 1.0)
