"""Workers: forks of this process once it has collected, which get whole files, the longest first.

A pytest plugin, for ``--workers N`` with N above 1. A worker has all tests in memory when it
starts, where another process would import and collect them again. It gets a file's tests together,
and those of all files that share a running server or the browser (:data:`SERVERS`): what they share
is started once. What it reports the hooks of this process get, as if the tests had run here.

A worker that dies fails the test that it ran; another one goes on with the rest of the file. Each
asks for more before its last test, which has to know the next one to tell what fixtures end.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import multiprocessing.util
import os
import sys
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from quire.system.machine import read_machine
from tests.durations import read_durations
from tests.lazy_packages import import_named

Items = list[pytest.Item]
#: Fixtures whose process lives as long as the session, by what files are put together for.
SERVERS = {
    "tiny_server": "tiny",
    "crowded_server": "crowded",
    "faulty_server": "crowded",  # a file asks for both
    "pulling_server": "pulling",
    "chromium": "browser",  # its start takes more than most of its tests
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say how many processes run tests."""
    parser.addoption(
        "--workers", type=_size, default=1, help="processes that run tests, or auto; one: this"
    )


def _size(text: str) -> int:
    """Return a number, or what the machine wants: tests wait a third of their time for others.

    A worker and its engines take about 1.5 GiB of their own.
    """
    if text != "auto":
        return int(text)
    machine = read_machine()
    return max(1, min(machine.num_cores * 2, machine.free_bytes * 2 // (3 << 30), 12))


def file_of(item: pytest.Item) -> str:
    """Return the path of a test's file; a hypothesis machine's own function is in a library."""
    return item.nodeid.split("::")[0]


def grouped(items: Items, seconds: dict[str, float]) -> Iterator[Items]:
    """Yield what a worker gets together: new files, then the longest first.

    Args:
        items: Collected tests.
        seconds: What each file took last.
    """
    files: dict[str, Items] = {}
    for item in items:  # one file's may be in several places: parameters of fixtures order them
        files.setdefault(file_of(item), []).append(item)
    groups: dict[str, list[str]] = {}
    for file, tests in files.items():
        asked = {name for test in tests for name in getattr(test, "fixturenames", ())}
        group = next((group for name, group in SERVERS.items() if name in asked), file)
        groups.setdefault(group, []).append(file)
    times = Counter({file: seconds.get(file, 1e9) for file in files})
    for names in sorted(groups.values(), key=lambda names: -sum(times[name] for name in names)):
        names.sort(key=lambda name: -times[name])
        yield [test for name in names for test in files[name]]


@dataclass
class Worker:
    """A child process that runs tests, seen from this one.

    Attributes:
        pid: The process' id.
        connection: To it.
        assigned: Tests that it has to run and has not reported.
    """

    pid: int
    connection: Connection
    assigned: deque[pytest.Item] = field(default_factory=deque)


class Pool:
    """Hands out groups of tests and passes reports on.

    Args:
        session: The run, with what was collected.
        groups: What a worker gets together.
    """

    def __init__(self, session: pytest.Session, groups: list[Items]) -> None:
        self._session = session
        self._config = session.config
        self._number = {item: number for number, item in enumerate(session.items)}
        self._waiting = deque(groups)
        numbers = sorted(self._number[item] for group in groups for item in group)
        assert numbers == [*range(len(session.items))], "each test must be in one group"
        self._workers: dict[Connection, Worker] = {}
        self._names = (f"worker{number}" for number in itertools.count())

    def run(self, size: int) -> None:
        """Run all tests in ``size`` processes.

        Raises:
            pytest.Session.Failed: As many failed as ``--maxfail`` allows.
            pytest.Session.Interrupted: A hook or a test asked for the end.
        """
        import_named()
        threads = len(os.listdir("/proc/self/task"))
        assert threads == 1, f"{threads} threads, of which a fork has one: what is collected starts"
        _temporary(self._config).getbasetemp()  # workers have theirs in it
        gc.freeze()  # what is there stays shared: the collector would write to all of it
        try:
            for _ in range(min(size, len(self._waiting))):
                self._start()
            while self._workers:
                self._hear()
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for worker in self._workers.values():
                worker.connection.close()  # it ends after the test that it runs
            for worker in self._workers.values():
                os.waitpid(worker.pid, 0)
        assert not self._waiting, "each test must be run"

    def _start(self) -> None:
        name, (connection, theirs) = next(self._names), Pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            for other in (connection, *self._workers):
                other.close()
            _run_worker(self._session, theirs, name)
        theirs.close()
        self._workers[connection] = Worker(pid, connection)

    def _hear(self) -> None:
        """Take a message of each worker that has sent one."""
        ready = wait(list(self._workers), timeout=5)
        for connection in ready:
            assert isinstance(connection, Connection)
            self._receive(self._workers[connection])
        for worker in [] if ready else list(self._workers.values()):
            # While a process that a test forked has the connection, too, its end is not heard.
            if os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._reap(worker)

    def _receive(self, worker: Worker) -> None:
        try:
            kind, content = worker.connection.recv()
        except (EOFError, OSError):  # it has died, maybe amid a message
            self._reap(worker)
            return
        if kind == "next":
            group = self._waiting.popleft() if self._waiting else []
            worker.assigned.extend(group)
            with suppress(BrokenPipeError):  # it has died: its end is heard next
                worker.connection.send([self._number[item] for item in group])
        elif kind == "reports":
            item = worker.assigned.popleft()
            for report in content:
                self._report(report)
            self._config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif kind == "warning":
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=content)
        elif kind == "stop":
            self._session.shouldstop = content
        else:
            raise RuntimeError(f"an error in a worker:\n{content}")

    def _report(self, data: dict[str, Any]) -> None:
        make = self._config.hook.pytest_report_from_serializable
        self._config.hook.pytest_runtest_logreport(report=make(config=self._config, data=data))

    def _reap(self, worker: Worker) -> None:
        """Wait for a worker; if it has left tests, fail the first and have another do the rest.

        Raises:
            RuntimeError: It failed without a test: no other would do better.
        """
        del self._workers[worker.connection]
        worker.connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not worker.assigned:
            if code:
                raise RuntimeError(f"a worker that had no test ended with {code}")
            return
        item = worker.assigned.popleft()
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"{item.nodeid}: its worker ended with {code}",
            when="call",
        )
        self._config.hook.pytest_runtest_logreport(report=report)
        if worker.assigned:
            self._waiting.appendleft(list(worker.assigned))
        if self._waiting:
            self._start()


class _Reporting:
    """Sends what the hooks of a worker get.

    Args:
        config: The worker's.
        connection: To the one that collected.
    """

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report until the test has ended."""
        hook = self._config.hook.pytest_report_to_serializable
        self._reports.append(hook(config=self._config, report=report))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Send all of a test at once: three messages take three times as long."""
        self._connection.send(("reports", self._reports))
        self._reports = []

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Send a warning as its text: not each can be sent as it is."""
        if when != "runtest":
            return  # the process that collected has told of it, and each new plugin is told again
        category, text = warning_message.category, str(warning_message.message)
        shown = Warning(f"{category.__name__}: {text}")
        message = warnings.WarningMessage(
            shown, Warning, warning_message.filename, warning_message.lineno
        )
        content = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        self._connection.send(("warning", content))


def _run_worker(session: pytest.Session, connection: Connection, name: str) -> NoReturn:
    """Run what is asked for, as the whole of a forked process; its output is its own from here."""
    code = 1
    try:
        _prepare(session.config, connection, name)
        try:
            _run_groups(session, connection)
            code = 0
        finally:
            session._setupstate.teardown_exact(None)  # what an interrupted test has left
    except pytest.exit.Exception as end:
        connection.send(("stop", str(end)))
    except (BrokenPipeError, ConnectionResetError, EOFError, KeyboardInterrupt):
        pass  # the run has ended, or this worker was interrupted
    except BaseException:  # whatever it is, the process that prints has to say it
        with suppress(OSError):
            connection.send(("error", traceback.format_exc()))
    finally:
        # Modules stay, other than at an interpreter's end: to take them apart copies each page.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _prepare(config: pytest.Config, connection: Connection, name: str) -> None:
    atexit._clear()  # what is registered so far is for the end of the process that collected
    atexit.register(multiprocessing.util._exit_function)
    plugins = config.pluginmanager
    # It would print each test here as well; others ask it for what they write to.
    reporter: Any = plugins.unregister(name="terminalreporter")
    plugins.register(SimpleNamespace(_tw=reporter._tw), "terminalreporter")
    plugins.register(_Reporting(config, connection))
    capturing: Any = plugins.getplugin("capturemanager")
    capturing.stop_global_capturing()  # all workers would write to its file
    capturing.start_global_capturing()
    capturing.suspend_global_capture()
    factory = _temporary(config)
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)


def _temporary(config: pytest.Config) -> Any:
    """Return what makes folders of tests."""
    return config._tmp_path_factory  # type: ignore[attr-defined]


def _run_groups(session: pytest.Session, connection: Connection) -> None:
    """Run groups until there are none or a hook asks for the end."""

    def next_group() -> deque[pytest.Item]:
        connection.send(("next", None))
        return deque(session.items[number] for number in connection.recv())

    items = next_group()
    while items and not session.shouldfail:
        item = items.popleft()
        items = items or next_group()
        upcoming = items[0] if items else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=upcoming)
        if session.shouldstop:
            connection.send(("stop", str(session.shouldstop)))
            return


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run tests in workers where more than one is asked for.

    On Linux: elsewhere a fork may not use what the system's libraries have begun.
    """
    config = session.config
    size = config.getoption("--workers") if sys.platform == "linux" else 1
    if size < 2 or session.testsfailed or config.option.collectonly or config.option.usepdb:
        return None
    Pool(session, list(grouped(session.items, read_durations()))).run(size)
    return True
