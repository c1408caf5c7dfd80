"""Tests in forks are as tests in one process; a worker that dies fails the test that it ran."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import servers, workers
from tests.server import conftest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
#: Each notes its process, so that it can be told who ran what.
NOTING = """
import os, pytest

def note(what):
    with open("notes", "a") as notes:
        notes.write(f"{what} {os.getpid()}\\n")

@pytest.fixture(scope="session")
def shared():
    note("begin")
    yield
    note("end")
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Write files, run them in two workers, and return what came of it and what they noted."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_PLUGINS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second each time

    def start(*words: str, conftest: str = "", **files: str):
        pytester.makeconftest(NOTING + conftest)
        head = "import atexit, os, pytest, signal, time, warnings\nfrom conftest import note\n"
        pytester.makepyfile(**{f"test_{name}": head + text for name, text in files.items()})
        given = ["-p", "tests.workers", "--workers", "2", *words]
        done = pytester.runpytest_subprocess(*given, timeout=120)
        notes = Path("notes")
        lines = notes.read_text().splitlines() if notes.exists() else []
        return done, [line.split() for line in lines]

    return start


MANY = """
@pytest.mark.parametrize("n", range(4))
def test_it(n, shared, tmp_path):
    note(f"{__name__}-{n}")
    print("some output")
    assert "worker" in str(tmp_path) and not list(tmp_path.iterdir())
"""


@pytest.mark.parametrize(
    ("cores", "gib", "size"), [(2, 24, 4), (1, 1, 1), (4, 6, 4), (64, 512, 12)]
)
def test_there_are_two_workers_a_core_where_memory_is_there_for_them(cores, gib, size, monkeypatch):
    machine = SimpleNamespace(num_cores=cores, free_bytes=gib << 30)
    monkeypatch.setattr(workers, "read_machine", lambda: machine)
    assert workers._size("auto") == size and workers._size("3") == 3


def test_files_come_whole_and_what_workers_share_ends_with_each(run):
    done, notes = run(a=MANY, b=MANY, c=MANY)
    done.assert_outcomes(passed=12)
    assert "some output" not in done.stdout.str()
    tests = [(name.split("-")[0], pid) for name, pid in notes if "-" in name]
    assert len(tests) == 12 and len(set(tests)) == 3  # a file's process is one
    pids = {pid for _, pid in notes}
    assert len(pids) <= 2 and str(os.getpid()) not in pids
    for pid in pids:
        own = [name for name, other in notes if other == pid]
        assert (own[0], own[-1]) == ("begin", "end") and own.count("end") == 1


def test_two_files_run_at_once(run):
    text = """
def test_it():
    note("here")
    for _ in range(3000):
        if open("notes").read().count("here") == 2: return
        time.sleep(0.01)
    assert False
def test_last(): pass  # before it a worker asks for the next file
"""
    done, notes = run(a=text, b=text)
    done.assert_outcomes(passed=4)
    assert len({pid for _, pid in notes}) == 2


def test_what_a_parameter_orders_is_run_once(run):
    """Parameters of a fixture that all share put tests of a file in several places."""
    text = """
def test_it(ordered): note(f"{__name__}-{ordered}")
"""
    fixture = """
@pytest.fixture(scope="session", params=[1, 2])
def ordered(request): return request.param
"""
    done, notes = run(conftest=fixture, a=text, b=text, c=text)
    done.assert_outcomes(passed=6)
    assert len({name for name, _ in notes}) == 6


def test_what_is_told_of_tests_is_what_one_process_tells(run, pytester):
    text = """
def test_fails():
    print("to be seen")
    assert 1 + 1 == 3
def test_skips():
    pytest.skip("not here")
@pytest.mark.xfail
def test_is_expected():
    assert False
def test_warns():
    warnings.warn("careful")
def test_passes(): pass
@pytest.fixture
def broken():
    raise RuntimeError("no fixture")
def test_cannot_begin(broken): pass
"""
    done, _ = run("-rs", a=text, b=MANY)
    wanted = {"passed": 6, "failed": 1, "skipped": 1, "xfailed": 1, "errors": 1, "warnings": 1}
    done.assert_outcomes(**wanted)
    alone = pytester.runpytest_subprocess("-rs", "test_a.py")
    for line in (
        "*assert (1 + 1) == 3",
        "to be seen",
        "*RuntimeError: no fixture",
        "SKIPPED * not here",
        "*careful*",
    ):
        done.stdout.fnmatch_lines([line])
        alone.stdout.fnmatch_lines([line])


def test_a_worker_that_dies_fails_its_test_and_no_other(run):
    text = """
@pytest.mark.parametrize("n", range(4))
def test_it(n, shared):
    note(n)
    if n == 1: os.kill(os.getpid(), signal.SIGKILL)
"""
    done, notes = run(a=text, b=MANY)
    done.assert_outcomes(passed=7, failed=1)
    done.stdout.fnmatch_lines(["*test_a.py::test_it?1?: its worker ended with -9"])
    pids = [pid for name, pid in notes if name in ("0", "1", "2", "3")]
    assert pids[0] == pids[1] != pids[2] == pids[3]


@pytest.mark.parametrize(
    ("text", "hook"),
    [
        ("def test_it(): atexit.register(os._exit, 9)", ""),
        ("def test_it(): pass", "os.register_at_fork(after_in_child=lambda: os._exit(9))"),
    ],
    ids=["at its end", "at its start"],
)
def test_a_worker_that_dies_without_a_test_fails_the_run(run, text, hook):
    done, _ = run(a=text, b="def test_other(): assert False", conftest=hook)
    assert done.ret == pytest.ExitCode.INTERNAL_ERROR
    done.stdout.fnmatch_lines(["*a worker that had no test ended with 9"])


def test_a_worker_that_dies_amid_a_message_fails_its_test_and_no_other(run):
    text = """
import multiprocessing.connection as c
def test_dies():
    c.Connection.recv = lambda self: os.kill(os.getpid(), signal.SIGKILL)
def test_is_next(): pass
"""
    done, _ = run(a=text, b=MANY)
    done.assert_outcomes(passed=5, failed=1)


def test_a_child_that_lives_on_does_not_hold_up_the_end(run):
    text = """
def test_it():
    if not os.fork():
        while not os.path.exists("over"): time.sleep(0.1)
        os._exit(0)
"""
    done, _ = run("-W", "default", a=text, b=MANY)
    Path("over").touch()
    done.assert_outcomes(passed=5)


def test_a_test_that_takes_too_long_says_so_and_others_go_on(run):
    text = """
@pytest.mark.timeout(1, func_only=True)  # the others have as long as they need
def test_it(): time.sleep(60)
"""
    done, _ = run("-p", "pytest_timeout", a=text, b=MANY)
    done.assert_outcomes(passed=4, failed=1)
    done.stdout.fnmatch_lines(["*Timeout*"])


@pytest.mark.parametrize("end", ["pytest.exit('enough')", "request.session.shouldstop = 'enough'"])
def test_a_test_can_end_the_run(run, end):
    text = f"def test_it(request): {end}\ndef test_no(): note('no')"
    done, notes = run(a=text)
    assert done.ret == pytest.ExitCode.INTERRUPTED and not notes
    done.stdout.fnmatch_lines(["*enough*"])


def test_what_is_printed_without_capture_is_seen(run, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    done, _ = run("-s", a="def test_it(): print('of a test')", b="warnings.warn('of a file')")
    done.stdout.fnmatch_lines(["*of a test*"])
    done.assert_outcomes(passed=1, warnings=1)


def test_the_first_failure_can_be_the_last(run):
    text = "\ndef test_fails(): assert False\n" + MANY
    done, notes = run("-x", a=text)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    assert len([name for name, _ in notes if "-" in name]) < 4


def test_a_file_that_cannot_be_collected_is_an_error(run):
    done, notes = run(a="import not_there", b=MANY)
    done.assert_outcomes(errors=1)
    assert not notes


def test_files_of_a_server_are_together(pytester):
    names = {"a": "tiny_server", "b": "", "c": "tiny_server", "d": "crowded_server", "e": ""}
    pytester.makeconftest("""
import pytest
@pytest.fixture
def tiny_server(): pass
@pytest.fixture
def crowded_server(): pass
""")
    for name, asked in names.items():
        pytester.makepyfile(**{f"test_{name}": f"def test_it({asked}): pass\ndef test_no(): pass"})
    items, _ = pytester.inline_genitems("-p", "no:asyncio")
    seconds = {f"test_{name}.py": float(n) for n, name in enumerate("abcd", 1)}
    made = [[workers.file_of(item) for item in group] for group in workers.grouped(items, seconds)]
    assert ["".join(dict.fromkeys(file[5] for file in group)) for group in made] == [
        *("e", "ca", "d", "b")  # the first is new
    ]
    assert all(len(group) == 2 * len(set(group)) for group in made)


def test_what_files_are_put_together_for_is_a_fixture():
    """A new name would put each of them into a worker of its own."""
    assert [
        name for name in workers.SERVERS if name not in {**vars(servers), **vars(conftest)}
    ] == []
