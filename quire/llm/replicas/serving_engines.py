"""Engines that a dispatcher chooses from, as long as they serve; each choice asks them."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import CapacityError, EngineDeadError
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.dispatcher import Assignment, Dispatcher, RequestLoad
from quire.llm.replicas.pools import PromptPools


class ServingEngines:
    """Leaves engines out that are being restarted, until they serve again.

    Args:
        engines: The engines by number.
        dispatcher: The dispatcher of these engines.
    """

    def __init__(
        self, engines: Mapping[int, EngineProxy], dispatcher: Dispatcher | PromptPools
    ) -> None:
        self._engines = engines
        self._dispatcher = dispatcher
        self._lost: set[int] = set()

    def __getitem__(self, engine: int) -> EngineProxy:
        """Return the engine of a number."""
        return self._engines[engine]

    def choose(self, job: RequestLoad) -> Assignment | None:
        """Assign a request to an engine, which counts from now on; return None when none serves."""
        for engine in [*self._lost]:
            if self.serves(engine):
                self._lost.remove(engine)
                self._dispatcher.found(engine)
        while (assignment := self._dispatcher.choose(job)) is not None:
            if self.serves(assignment.engine):
                break
            self._dispatcher.ended(assignment)
            self._dispatcher.lost(assignment.engine)
            self._lost.add(assignment.engine)
        return assignment

    def serves(self, engine: int) -> bool:
        """Return whether an engine takes requests."""
        try:
            self._engines[engine].check_serving()
        except (EngineDeadError, CapacityError):
            return False
        return True
