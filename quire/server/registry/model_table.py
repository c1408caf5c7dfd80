"""The models in memory, those unloaded for another, and those that wait: rules, no loading.

The owner of the table acts on its answers and notes the outcome in it. The table takes the
time from its callers, so that every order of events can be tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from quire.core.counts import format_bytes
from quire.core.errors import CapacityError

#: How long a model waits for others to be idle before the least recently used ones are closed to
#: new requests: a model under steady load is never idle.
PATIENCE_SECONDS = 5.0
#: After a load that failed, requests get its error for as long, and then try again.
RETRY_SECONDS = 2.0


class ModelState(StrEnum):
    """The state of a model."""

    ABSENT = "absent"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  # finishes the requests that it has; no new one begins
    UNLOADING = "unloading"
    FAILED = "failed"


#: In these a model takes memory.
HOLDING = (ModelState.LOADING, ModelState.READY, ModelState.DRAINING, ModelState.UNLOADING)


class LoadDecision(StrEnum):
    """The answer to a request for a model."""

    LEASED = "leased"  # until it is released
    LOAD = "load"  # the caller is to begin loading, and to ask again
    WAIT = "wait"  # ask again when the table has changed


@dataclass(slots=True)
class ModelEntry:
    """A model that the server knows.

    Attributes:
        name: First served name.
        num_bytes: Bytes of memory that it takes when it is loaded.
        keep_alive: Seconds without a request after which it is unloaded, by the server's setting;
            None for never.
        pinned: Whether it is never unloaded for another model.
        kept: The same as ``keep_alive``, set by an operator since it was loaded, else None.
        state: The state that it is in.
        num_leases: Requests that use it.
        num_waiting: Requests that wait for it.
        num_unwished: Requests since it was last idle that do not say how long it is to stay.
        longest_wish: Most seconds that the other requests ask for.
        stays_until: The time at which it is unloaded by what all requests have asked for.
        is_fresh: Whether no request has ended since it was loaded.
        last_used: The time at which a request last arrived or ended.
        wanted_since: The arrival time of the first request that waits for memory.
        failed_time, error: Time and error of the last load, if it failed.
    """

    name: str
    num_bytes: int
    keep_alive: float | None = None
    pinned: bool = False
    kept: float | None = None
    state: ModelState = ModelState.ABSENT
    num_leases: int = 0
    num_waiting: int = 0
    num_unwished: int = 0
    longest_wish: float = 0.0
    stays_until: float = -math.inf
    is_fresh: bool = False
    last_used: float = -math.inf
    wanted_since: float | None = None
    failed_time: float = -math.inf
    error: Exception | None = None

    @property
    def usual_seconds(self) -> float:
        """Seconds that it stays after a request that does not say how long."""
        return math.inf if self.keep_alive is None else self.keep_alive

    @property
    def expiry(self) -> float:
        """The time at which it is unloaded if no request arrives."""
        return self.stays_until if self.kept is None else self.last_used + self.kept

    def note_use(self, now: float) -> None:
        """Keep it for as long as ended requests ask; no request shortens the time of another."""
        seconds = self.usual_seconds if self.num_unwished else self.longest_wish
        since = -math.inf if self.is_fresh else self.stays_until
        self.stays_until = max(since, now + seconds)
        self.num_unwished, self.longest_wish, self.is_fresh = 0, 0.0, False


class EntryResidence:
    """See :class:`quire.server.generation.service.Residence`."""

    def __init__(self, entry: ModelEntry, clock: Callable[[], float]) -> None:
        self._entry = entry
        self._clock = clock

    def keep(self, seconds: float, *, by_operator: bool) -> None:
        entry = self._entry
        if by_operator:
            entry.kept = seconds
            return
        entry.num_unwished = max(0, entry.num_unwished - 1)
        entry.longest_wish = max(entry.longest_wish, min(seconds, entry.usual_seconds))

    def seconds_left(self) -> float:
        entry = self._entry
        if entry.num_leases:
            return entry.usual_seconds if entry.kept is None else entry.kept
        return max(0.0, entry.expiry - self._clock())


class ModelTable:
    """The models of a server and the memory that they share.

    Args:
        budget_bytes: Bytes of memory for all of them.

    Attributes:
        entries: The models by name.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.entries: dict[str, ModelEntry] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes that the models in memory take, or will take once loaded."""
        return sum(e.num_bytes for e in self.entries.values() if e.state in HOLDING)

    def add(self, entry: ModelEntry) -> None:
        """Add a model, which is absent."""
        assert entry.name not in self.entries and entry.state is ModelState.ABSENT
        self.entries[entry.name] = entry

    def forget(self, name: str) -> None:
        """Remove a model that is not in memory and that no request waits for."""
        entry = self.entries[name]
        assert entry.state not in HOLDING and not entry.num_waiting, entry
        del self.entries[name]

    def rename(self, name: str, new: str) -> None:
        """Rename a model to a name that no other has."""
        assert new not in self.entries, new
        entry = self.entries[new] = self.entries.pop(name)
        entry.name = new

    # -- requests -----------------------------------------------------------------------------
    def ask(self, name: str, now: float) -> LoadDecision:
        """Ask to use a model.

        Raises:
            Exception: The error of its last load, a moment ago.
            CapacityError: The model does not fit with those that stay.
        """
        entry = self.entries[name]
        if entry.state is ModelState.READY:
            entry.num_leases += 1
            entry.num_unwished += 1
            entry.last_used = now
            entry.wanted_since = None
            return LoadDecision.LEASED
        if entry.state is ModelState.FAILED and now - entry.failed_time < RETRY_SECONDS:
            assert entry.error is not None
            raise entry.error
        if entry.state not in (ModelState.ABSENT, ModelState.FAILED):
            return LoadDecision.WAIT
        return self._make_room(entry, now)

    def begin_wait(self, name: str) -> None:
        """Note a request that waits."""
        self.entries[name].num_waiting += 1

    def end_wait(self, name: str) -> None:
        """Note that it waits no longer, for whatever reason."""
        entry = self.entries[name]
        entry.num_waiting -= 1
        if not entry.num_waiting:
            entry.wanted_since = None

    def release(self, name: str, now: float) -> None:
        """Note that a request is done with a model."""
        entry = self.entries[name]
        assert entry.num_leases > 0, entry
        entry.num_leases -= 1
        entry.last_used = now
        if not entry.num_leases:
            entry.note_use(now)

    # -- loading and unloading ----------------------------------------------------------------
    def loaded(self, name: str, now: float) -> None:
        """Note that a load is done."""
        entry = self._in_state(name, ModelState.LOADING)
        entry.state, entry.last_used, entry.error = ModelState.READY, now, None
        entry.stays_until, entry.is_fresh = now + entry.usual_seconds, True

    def load_failed(self, name: str, error: Exception, now: float) -> None:
        """Note that a load has failed."""
        entry = self._in_state(name, ModelState.LOADING)
        entry.state, entry.error, entry.failed_time = ModelState.FAILED, error, now

    def unload(self, name: str) -> bool:
        """Unload a model when its requests have ended; return whether it is in memory.

        A model that is loading stays; a second call does nothing.
        """
        entry = self.entries[name]
        if entry.state is ModelState.READY:
            entry.state = ModelState.DRAINING
        return entry.state in HOLDING

    def unload_idle(self, now: float) -> None:
        """Unload the models that no request has used for as long as they are kept."""
        for entry in self._idle():
            if now >= entry.expiry:
                entry.state = ModelState.DRAINING

    def begin_unloads(self) -> list[str]:
        """Return the models that are to be unloaded now; each is returned once."""
        ending = [
            entry
            for entry in self.entries.values()
            if entry.state is ModelState.DRAINING and not entry.num_leases
        ]
        for entry in ending:
            entry.state = ModelState.UNLOADING
        return [entry.name for entry in ending]

    def unloaded(self, name: str) -> None:
        """Note that a model is out of memory."""
        entry = self._in_state(name, ModelState.UNLOADING)
        entry.state, entry.kept = ModelState.ABSENT, None

    def next_expiry(self) -> float | None:
        """Return when :meth:`unload_idle` next has something to do; None when never."""
        times = (e.expiry for e in self._idle())
        return min((time for time in times if time < math.inf), default=None)

    # -- memory -------------------------------------------------------------------------------
    def check_fits(self, name: str) -> None:
        """Check that a model fits once all are unloaded that may be unloaded for it.

        Raises:
            CapacityError: The model does not fit with those that stay.
        """
        entry = self.entries[name]
        staying = [e for e in self.entries.values() if e.pinned and e.state in HOLDING]
        held = sum(e.num_bytes for e in staying if e is not entry)
        if entry.num_bytes + held > self.budget_bytes:
            raise CapacityError(
                f"[models] {entry.name} needs {format_bytes(entry.num_bytes)} of the "
                f"{format_bytes(self.budget_bytes)} for models, of which {format_bytes(held)} are "
                "kept for others. Raise --memory, or take smaller weights."
            )

    def _make_room(self, entry: ModelEntry, now: float) -> LoadDecision:
        """Begin to load ``entry`` if it fits, else unload others; the first to wait is first."""
        missing = entry.num_bytes - (self.budget_bytes - self.used_bytes)
        if missing <= 0 and not self._is_behind(entry):
            entry.state, entry.wanted_since = ModelState.LOADING, None
            return LoadDecision.LOAD
        self.check_fits(entry.name)
        others = [e for e in self.entries.values() if e.state in HOLDING and not e.pinned]
        if entry.wanted_since is None:
            entry.wanted_since = now
        ending = (ModelState.DRAINING, ModelState.UNLOADING)
        missing -= sum(e.num_bytes for e in others if e.state in ending)
        patient = now - entry.wanted_since < PATIENCE_SECONDS
        candidates = self._idle() if patient else [e for e in others if e.state is ModelState.READY]
        chosen = _oldest_first([e for e in candidates if not e.pinned], missing)
        for victim in chosen:
            victim.state = ModelState.DRAINING
        return LoadDecision.WAIT

    def _is_behind(self, entry: ModelEntry) -> bool:
        """Return whether another model has waited for memory for longer."""
        since = math.inf if entry.wanted_since is None else entry.wanted_since
        waiting = (e for e in self.entries.values() if e is not entry)
        return any(e.wanted_since is not None and e.wanted_since < since for e in waiting)

    def _idle(self) -> list[ModelEntry]:
        """Return the models that are ready and that no request uses or waits for."""
        ready = [e for e in self.entries.values() if e.state is ModelState.READY]
        return [e for e in ready if not (e.num_leases or e.num_waiting)]

    def _in_state(self, name: str, state: ModelState) -> ModelEntry:
        entry = self.entries[name]
        assert entry.state is state, entry
        return entry


def _oldest_first(entries: Iterable[ModelEntry], num_bytes: int) -> list[ModelEntry]:
    """Return the least recently used that hold ``num_bytes`` together; none where all do not."""
    chosen: list[ModelEntry] = []
    for entry in sorted(entries, key=lambda e: e.last_used):
        if num_bytes <= 0:
            break
        chosen.append(entry)
        num_bytes -= entry.num_bytes
    return chosen if num_bytes <= 0 else []
