"""A fork of an interpreter that has imported Quire is what ``python -m`` would be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.preforked import ROOT, Preforked, children

#: Prints what a module sees of its process, then does what its argument names.
MODULE = """
import atexit, json, os, signal, sys, threading, time
def seen():
    return {
        "argv": sys.argv, "orig": sys.orig_argv[1:], "name": __name__, "file": __file__,
        "main": sorted(n for n in vars(sys.modules["__main__"]) if not n.startswith("__")),
        "path": sys.path[0], "cwd": os.getcwd(), "word": os.environ.get("WORD"),
        "home": os.environ.get("HOME"), "stdin": sys.stdin.read(), "tty": sys.stdout.isatty(),
        "signals": [str(signal.getsignal(n)).split(" at ")[0] for n in (2, 13, 15, 17)],
        "mask": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "files": sorted(n for n in map(int, os.listdir("/proc/self/fd")) if n < 500)[:-1],
        "threads": threading.active_count(), "encoding": [sys.stdout.encoding, sys.stderr.errors],
        "leader": os.getsid(0) == os.getpid(), "cores": sorted(os.sched_getaffinity(0)),
    }
print(json.dumps(seen()))
print("an error", file=sys.stderr)
atexit.register(print, "at the end")
thread = threading.Thread(target=lambda: (time.sleep(0.05), print("a thread's end")))
if "thread" in sys.argv: thread.start()
if "raise" in sys.argv: raise ValueError("wrong")
if "exit" in sys.argv: sys.exit(7)
if "text" in sys.argv: sys.exit("a reason")
if "interrupt" in sys.argv: raise KeyboardInterrupt
if "hang" in sys.argv:
    sys.stdout.flush()
    for _ in range(3000): time.sleep(0.02)  # a signal just before one long sleep waits for its end
"""
ENDINGS = {
    "thread": 0,
    "raise": 1,
    "exit": 7,
    "text": 1,
    "interrupt": -signal.SIGINT,
}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Any]:
    """Start the module by a class, in its folder and with a variable."""
    (tmp_path / "seen_module.py").write_text(MODULE)

    def run(kind: Callable[..., Any], *words: str, **options: Any) -> Any:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return kind(
            [sys.executable, "-m", "seen_module", *words],
            cwd=tmp_path,
            env={**os.environ, "WORD": "given"},
            text=True,
            **options,
        )

    return run


def fresh(*args: Any, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(*args, **{"stdin": subprocess.DEVNULL, **options})


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the module lists Linux' /proc")
@pytest.mark.parametrize("word", ENDINGS)
def test_it_is_as_a_fresh_interpreter(start: Callable[..., Any], word: str) -> None:
    ends, given = [], {"stdin": subprocess.PIPE} if word == "exit" else {}
    for kind in (fresh, Preforked):
        process = start(kind, word, **given)
        output, errors = process.communicate("one\r\ntwo" if given else None, timeout=60)
        ends.append((process.returncode, json.loads(output.splitlines()[0]), errors.splitlines()))
        assert output.splitlines()[1:] == ["a thread's end"] * (word == "thread") + ["at the end"]
    (code, seen, errors), (own_code, own_seen, own_errors) = ends
    assert code == own_code == ENDINGS[word]
    assert own_seen == seen and seen["stdin"] == ("one\r\ntwo" if given else "")
    # The traceback has the lines of what the fork came from on top.
    assert own_errors[0] == errors[0] and own_errors[-1] == errors[-1]


def test_it_is_killed_and_read_as_popen_is(start: Callable[..., Any]) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        with start(Preforked, "hang", start_new_session=True) as process:
            assert json.loads(process.stdout.readline())["leader"]
            assert process.poll() is None and os.getsid(process.pid) == process.pid
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            process.send_signal(number)
            assert process.wait(60) == -number == process.poll() == process.returncode
            process.kill()  # no-op: it has ended


def test_streams_go_where_they_are_told_to(start: Callable[..., Any], tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        assert start(Preforked, stdout=log, stderr=subprocess.STDOUT).wait(60) == 0
    assert "an error" in (tmp_path / "log").read_text().splitlines()
    process = start(Preforked, stdout=subprocess.DEVNULL)
    assert process.communicate(timeout=60) == (None, "an error\n")


def test_code_runs_as_a_module_does(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv, sys.path[0], __name__, sorted(vars())); sys.exit(3)"
    command = [sys.executable, "-c", code, "a", "b"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    process = Preforked(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0] == made.stdout
    assert process.returncode == made.returncode == 3


def test_quire_ends_by_its_own_rules() -> None:
    command = [sys.executable, "-m", "quire.cli.main"]
    for words, code in ((["version"], 0), (["show", "no/where"], 1), (["calc", "--no"], 2)):
        done = subprocess.run([*command, *words], capture_output=True, text=True)
        process = Preforked([*command, *words], stdout=-1, stderr=-1, text=True)
        assert process.communicate(timeout=60) == (done.stdout, done.stderr)
        assert process.returncode == done.returncode == code


def test_variables_that_are_read_early_have_an_origin_of_their_own() -> None:
    for isa in ("scalar", None):
        environment = {k: v for k, v in os.environ.items() if k != "QUIRE_CPU_ISA"}
        environment |= {"QUIRE_CPU_ISA": isa} if isa else {}
        command = [sys.executable, "-m", "quire.cli.main", "version"]
        process = Preforked(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.communicate(timeout=60)[0].strip().endswith("scalar") == (isa == "scalar")


def wait_for_end(connection: socket.socket) -> None:
    """What a child process of the test below does."""
    connection.recv(1)


def test_its_children_are_forks_and_end_with_it() -> None:
    code = (
        "import sys; from quire.system.child_process import ChildProcess\n"
        f"child = ChildProcess('{__name__}:wait_for_end')\n"
        "print(child.pid, flush=True); sys.stdin.read()\n"
        "print(child.end(at_once=True), flush=True)"
    )
    for ends_itself in (True, False):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with Preforked([sys.executable, "-c", code], cwd=ROOT, **pipes) as process:
            pid = int(process.stdout.readline())
            (child,) = children(psutil.Process(process.pid))
            assert (child.pid, child.name()) == (pid, "test_preforked")
            if ends_itself:
                process.stdin.close()
                assert process.stdout.readline().strip() == str(-signal.SIGKILL)
            process.kill()
        assert psutil.wait_procs([child], timeout=60)[1] == []


def test_descriptors_have_the_numbers_that_they_have_here() -> None:
    pipes = [os.pipe() for _ in range(3)]
    # Low numbers, which are other files in the process that forks.
    code = f"import os; [os.write(w, b'%d' % w) for w in {[write for _, write in pipes]}]"
    wanted = [write for _, write in reversed(pipes)]
    assert Preforked([sys.executable, "-c", code], pass_fds=wanted).wait(60) == 0
    for read, write in pipes:
        os.close(write)
        with open(read, "rb") as file:
            assert file.read() == b"%d" % write
