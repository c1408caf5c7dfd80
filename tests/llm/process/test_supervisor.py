"""What the thread that watches an engine's process makes of what it sees."""

from __future__ import annotations

import time

from quire.llm.process.supervisor import Supervisor


class BeginningWork:
    """An owner whose first request comes in the moment in which it is asked for work."""

    supervisor: Supervisor

    def has_work(self):
        self.supervisor.step_time = time.monotonic()
        return True

    def ended(self, error):
        pass


def test_work_that_begins_after_a_long_rest_is_given_its_time():
    """The age was read first, and the first request after a pause ended with the engine."""
    owner = BeginningWork()
    owner.supervisor = supervisor = Supervisor(owner, watchdog_timeout=120)
    try:
        supervisor.step_time = supervisor._work_time = time.monotonic() - 1000
        assert not supervisor._is_stuck()
    finally:
        supervisor.close()
