"""A watched server: its last readings, made into what is shown or printed."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from quire.cli.server_connection import LOOPBACK
from quire.cli.top.alarms import ALARM_SECONDS, Alarm, alarms
from quire.cli.top.figures import Figures, figures
from quire.cli.top.reading import History, Reading
from quire.cli.top.view import ModelLine, Shown
from quire.core.errors import QuireError
from quire.planner.machine_speed import MachineSpeed

PROCESSES = ("server", "engine")


class Watched:
    """A server's last readings and state.

    Args:
        url: The server's URL.
        window: Seconds that figures cover.
        first: The first reading.
        machine: The speed of this machine, where it was measured.
    """

    def __init__(
        self, url: str, window: float, first: Reading, machine: MachineSpeed | None
    ) -> None:
        self.url = url
        self._window = window
        self._history = History(max(window, ALARM_SECONDS))
        self._history.add(first)
        self._problem: str | None = None
        self._local = urlsplit(url).hostname in LOOPBACK
        self._machine = machine if self._local else None

    def add(self, reading: Reading | QuireError) -> None:
        """Take in a reading, or why there was none."""
        if isinstance(reading, Reading):
            self._history.add(reading)
            self._problem = None
        else:
            self._problem = str(reading)

    def shown(self, keys: str = "") -> Shown:
        """Return what to draw now; figures are the last ones while the server does not answer."""
        readings = self._history.last(self._window)
        return Shown(
            url=self.url,
            state=self.state,
            clock=datetime.now().strftime("%H:%M:%S"),
            sums=_figures(readings, None),
            models=self._models(readings),
            alarms=self._alarms(),
            processes=_processes(readings),
            machine=self._machine,
            local=self._local,
            keys=keys,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain data, seconds and bytes as units."""
        readings = self._history.last(self._window)
        sums = _figures(readings, None)
        found: dict[str, Any] = {
            "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
            "url": self.url,
            "state": self.state,
            "problem": self._problem,
            "all": None if sums is None else sums.as_json(),
            "models": [
                {
                    "name": line.name,
                    "state": line.state,
                    "loaded_part": line.loaded,
                    "figures": None if line.figures is None else line.figures.as_json(),
                }
                for line in self._models(readings)
            ],
            "alarms": [{"critical": a.critical, "text": a.text} for a in self._alarms()],
        }
        if self._machine is not None and sums is not None:
            found["machine"] = {
                "read_part": (sums.read_rate or 0.0) / self._machine.read,
                "compute_part": (sums.flop_rate or 0.0) / self._machine.compute,
            }
        return found

    @property
    def state(self) -> str:
        """Return ``ready``, ``not ready`` or ``no answer``."""
        if self._problem is not None:
            return "no answer"
        return "ready" if self._history.readings[-1].not_ready is None else "not ready"

    def _alarms(self) -> list[Alarm]:
        if self._problem is not None:
            return [Alarm(True, self._problem)]
        return alarms(self._history.last(ALARM_SECONDS))

    def _models(self, readings: tuple[Reading, ...]) -> list[ModelLine]:
        last = readings[-1]
        # A server may know a model under another name than its figures have.
        names = dict.fromkeys([*last.models, *last.scrape.models])
        return [
            ModelLine(
                name,
                last.models.get(name, "ready") if self._problem is None else "?",
                last.scrape.value("model_load_progress_perc", name),
                _figures(readings, name) if name in last.scrape.models else None,
            )
            for name in names
        ]


def _figures(readings: tuple[Reading, ...], model: str | None) -> Figures | None:
    return figures(readings[0], readings[-1], model) if len(readings) > 1 else None


def _processes(readings: tuple[Reading, ...]) -> dict[str, tuple[float, float]]:
    """Return cores in use and resident bytes of the server's process and of its engines'."""
    if len(readings) < 2:
        return {}
    before, after = readings[0], readings[-1]
    found = {}
    for name in PROCESSES:
        stem = "process_cpu_seconds"
        seconds = after.scrape.increase(before.scrape, stem, process=name)
        resident = after.scrape.value("process_memory_bytes", process=name)
        if seconds is not None and resident is not None:
            found[name] = seconds / (after.seconds - before.seconds), resident
    return found
