"""The command as people run it: through the shell."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from quire.cli.chat.run import _fields, run
from quire.cli.main import COMMANDS
from quire.planner import machine_speed
from quire.server.server_options import ServerOptions
from quire.settings.flags import setting_flags
from tests.commands import changed_early, environment


def test_help_lists_every_command(quire):
    result = quire("--help")
    assert result.returncode == 0
    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)


def test_no_test_has_changed_what_commands_read_at_their_start():
    """Else each command of the suite's would run in a process of its own, and import torch anew."""
    assert changed_early(environment()) == {}


def test_help_imports_nothing_heavy():
    heavy = ("numpy", "torch", "tokenizers", "rich", "tomllib", "quire.llm")
    code = (
        "import sys; from quire.cli.main import run; run(['--help']);"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "[]"


def test_version(quire):
    result = quire("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("quire 0.")


def test_unknown_command_is_misuse(quire):
    result = quire("sreve")
    assert (result.returncode, result.stdout) == (2, "")
    assert "No such command 'sreve'. Did you mean 'serve'?" in result.stderr
    result = quire("serve", "--max-model-ln", "9")
    assert result.returncode == 2 and "--max-model-len" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("push", "me/m"), "There is no registry to push to: copy the file that quire show names"),
        (("cp", "a", "b"), "Take quire copy."),
        (("models",), "quire list shows those on this machine"),
        (("upgrade",), "pip install --upgrade quire"),
        (("list", "--all"), "all models of this machine are shown"),
        (("run", "m", "Hi", "--temp", "0"), "Take --temperature."),
        (("run", "m", "-p", "Hi"), "Write it after the model"),
        (("generate", "m", "--system", "x"), "Take quire run MODEL PROMPT --system TEXT."),
        (("run", "m", "--hidethinking"), "Leave it out: reasoning is not shown."),
        (("show", "m", "--parameters"), "show prints them as sampling."),
        (("create", "m", "-q", "q4_0"), "Take quire quantize"),
        (("chat", "m", "What", "now?"), "For one answer: quire run m 'What now?'"),
        (("chat", "m", "Hi"), "quire generate m --chat --prompt Hi"),
        (("generate", "m", "Hi"), "Say quire generate m --prompt Hi"),
        (("run-batch",), "LLM.generate and LLM.chat take all prompts at once."),
        (("get", "m"), "Take quire pull."),
        (("bench", "throughput"), "Take quire bench serve"),
        (("calc", "vram"), "Take quire calc memory."),
        (("quire-tiny",), "Take quire run quire-tiny."),
        (("qwen3:0.6b",), "Take quire run qwen3:0.6b."),
        (("-m", "quire-tiny"), "Take quire serve MODEL"),
        (("ps", "--port", "8001"), "Take --base-url HOST:PORT."),
        (("run", "m", "Hi", "--format", "xml"), "--format must be json or a JSON schema"),
    ],
)
def test_the_remedy_was_missing_or_a_command_that_does_something_else(quire, arguments, remedy):
    """``push`` suggested ``ps``, and a text after MODEL was an unexpected argument only."""
    result = quire(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert remedy in result.stderr


@pytest.mark.parametrize(
    ("arguments", "fields", "prompt"),
    [
        (["--think", "Hi", "you"], {"enable_thinking": True}, ("Hi", "you")),
        (["Hi", "--think=false"], {"enable_thinking": False}, ("Hi",)),
        (["--think=high", "--", "--think"], {"reasoning_effort": "high"}, ("--think",)),
        (["--format", "json"], {"response_format": {"type": "json_object"}}, ()),
        (
            ["--format", '{"type": "object"}'],
            {"response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": {"type": "object"}},
            }},
            (),
        ),
    ],
)  # fmt: skip
def test_run_takes_the_flags_of_ollama(arguments, fields, prompt):
    """``--think`` and ``--format`` were unknown."""
    params = run.make_context("run", ["m", *arguments]).params
    assert (_fields(params["think"], params["form"]), params["prompt"]) == (fields, prompt)


def test_help_and_version_are_commands_too(quire):
    assert quire("version").stdout == quire("--version").stdout
    assert quire("help").stdout == quire("--help").stdout
    assert quire("help", "pull").stdout == quire("pull", "--help").stdout
    assert quire("-v").stdout == quire("--version").stdout
    assert quire("help", "calc", "kv").stdout == quire("calc", "kv", "--help").stdout
    result = quire("help", "pul")
    assert result.returncode == 2 and "Did you mean 'pull'?" in result.stderr


def test_a_server_is_named_without_a_scheme(quire):
    """It was a usage error that did not show what was wrong."""
    result = quire("ps", "--base-url", "127.0.0.1:1")
    assert result.returncode == 1 and "No server is running at 127.0.0.1:1." in result.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion(quire, shell):
    result = quire("completion", shell)
    assert result.returncode == 0
    assert "_QUIRE_COMPLETE" in result.stdout


def test_completion_of_an_unknown_shell_is_misuse(quire):
    assert quire("completion", "csh").returncode == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_fits_one_screen(quire, command):
    result = quire(command, "--help")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) <= 60


def test_help_all_of_serve_lists_every_flag_of_the_server(quire):
    short, whole = quire("serve", "--help").stdout, quire("serve", "--help-all").stdout
    flags = {f"--{field.name}".replace("_", "-") for field in fields(ServerOptions)}
    listed = set(re.findall(r"--[a-z-]+", whole.replace("--[no-]", "--")))
    assert flags <= listed
    assert "flags: --help=server):" in short and "--stream-interval" not in short


def test_help_all_lists_every_engine_flag(quire):
    short, whole = quire("generate", "--help").stdout, quire("generate", "--help-all").stdout
    flags = {f"--{name}".replace("_", "-") for name in setting_flags()}
    listed = set(re.findall(r"--[a-z-]+", whole.replace("--[no-]", "--")))
    assert flags <= listed
    assert "--max-model-len" in short and "--block-size" not in short


def test_failure_is_one_line(quire, tmp_path):
    result = quire("generate", str(tmp_path / "nowhere"), "--prompt", "x")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("quire: [load] ")
    assert result.stderr.count("\n") == 1


def test_pull_of_a_folder_prints_it(quire, tmp_path):
    result = quire("pull", str(tmp_path))
    assert (result.returncode, result.stdout) == (0, f"{tmp_path}\n")


def test_doctor_reports_what_it_found(quire):
    report = json.loads(quire("doctor", "--json", "--no-measure").stdout)
    assert report["native"]["instruction set"] in report["native"]["available"]
    assert report["machine"]["cores for Quire"] == 1
    assert set(report) == {"software", "machine", "native", "model", "extras", "environment"}
    shown = quire("doctor", "--no-measure").stdout
    # In a file nothing is cut at the width of a terminal.
    assert report["model"]["quire-tiny"] in shown
    assert all(name in shown for name in report["native"])
    assert report["native"]["instruction set"] in shown


def test_doctor_measures_and_remembers(tmp_path, quire, monkeypatch):
    """The ridge is the division of two lines above it."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))
    printed = quire("doctor", "--json")
    assert printed.returncode == 0, printed.stderr
    speed, native = machine_speed.remembered(), json.loads(printed.stdout)["native"]
    assert speed is not None and native["memory read, GB/s"] == round(speed.read / 1e9, 1)
    ridge = native["ridge, operations a byte"][0]
    assert ridge == f"float32 {speed.float32 / speed.read:.0f}"
    assert len(native["memory binds steps below, rows"]) == 3


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_not_given_to_a_socket(closed, tmp_path):
    """A server with a closed stderr never became ready; with all closed, SIGTERM aborted it."""
    code = (
        "import os, socket, subprocess, sys; from quire.cli import main\n"
        "def run():\n"
        "    child = [sys.executable, '-c', 'import os; [os.fstat(n) for n in range(3)]']\n"
        "    low = socket.socket().fileno() < 3\n"
        "    print('told', file=sys.stderr)\n"
        "    return 4 * low + 2 * bool(subprocess.run(child).returncode)\n"
        "main.run = run; main.main()"
    )
    path = tmp_path / "closed.py"
    path.write_text(code)
    command = ["sh", "-c", f'exec "$0" "$1" {closed}', sys.executable, str(path)]
    assert subprocess.run(command, timeout=60).returncode == 0
