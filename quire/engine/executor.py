"""The interface that the engine needs of execution; ``runner`` offers it without being imported."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Protocol

from quire.core.metrics import Samples
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.step import SchedulerOutput, StepOutput
from quire.engine.gates.adapter_gate import Adapters
from quire.engine.gates.picture_gate import Pictures
from quire.engine.gates.push_gate import Outgoing
from quire.engine.gates.tier_gate import Tiers


class StepHandle(Protocol):
    """A step under way."""

    def result(self) -> StepOutput:
        """Wait for the step and return what it brought.

        Raises:
            Exception: The step as a whole failed; nothing of it was kept.
        """
        ...


class Executor(Protocol):
    """Runs plans on a model that is already loaded.

    Attributes:
        kv_cache_spec: Size of the KV cache's blocks.
        num_blocks: Blocks in the cache, the null block (id 0) included.
        depth: Steps that may be under way at once: as many as there are stages.
    """

    kv_cache_spec: KVCacheSpec
    num_blocks: int
    depth: int

    @property
    def failure(self) -> socket.socket | None:
        """Readable once :meth:`check` raises; None where it never does."""
        ...

    def check(self) -> None:
        """Return when steps can be computed; asked while there are none.

        Raises:
            RankDeadError: A process that computes a part of them is gone.
        """
        ...

    @property
    def adapters(self) -> Adapters | None:
        """Adapters of requests; None where requests may have none."""
        ...

    @property
    def pictures(self) -> Pictures | None:
        """Pictures of requests; None for a model that reads text alone."""
        ...

    @property
    def tiers(self) -> Tiers | None:
        """Blocks outside of the KV cache; None where there are none."""
        ...

    @property
    def outgoing(self) -> Outgoing | None:
        """The sender of blocks to other engines; None where none gets any."""
        ...

    def submit(self, plan: SchedulerOutput, request_arrived: Callable[[], bool]) -> StepHandle:
        """Compute one step and sample, in the order of submission; errors are the handle's.

        The step may be under way when this returns. Meanwhile further ones are submitted, up to
        ``depth`` in all: of other requests, or of later parts of prompts whose earlier parts draw
        nothing. Results are asked for in the order of submission. Each step finds the blocks as
        the steps before it have filled them.

        Args:
            plan: The step's plan.
            request_arrived: Function that says whether a request has arrived that can start at
                once. It is called within a step that has ``abortable_ids``: once it says so, the
                executor may drop their rows.
        """
        ...

    def unready(self) -> frozenset[str]:
        """Return the requests whose next token cannot be drawn yet: their grammars are at work.

        A plan must not schedule them; they become ready by themselves.
        """
        ...

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until one of :meth:`unready` is ready, at most that long."""
        ...

    def measure_rows(self) -> Mapping[int, float]:
        """Return the seconds of a step by the number of its rows, measured now; before any step."""
        ...

    def stats(self) -> Samples:
        """Return counters and gauges by metric stem."""
        ...

    def shutdown(self) -> None:
        """Free everything; no call follows."""
        ...
