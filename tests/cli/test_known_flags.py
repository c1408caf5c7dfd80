"""Flags of other servers' scripts: each is taken, and one that does nothing says so."""

from __future__ import annotations

import pytest

from quire.cli.known_flags import SETTINGS, SWITCHES
from quire.cli.serve import serve
from tools.serve_process import ServeProcess

SCRIPTS = """
--model quire-tiny
quire-tiny
--tensor-parallel-size 4
--pipeline-parallel-size 2
--max-model-len 4096
--gpu-memory-utilization 0.95
--enable-prefix-caching
--enable-chunked-prefill
--max-num-batched-tokens 8192
--max-num-seqs 256
--block-size 16
--kv-cache-dtype fp8
--dtype auto
--dtype bfloat16
--dtype float16
--enforce-eager
--port 8000
--disable-log-requests
--enable-lora
--lora-modules sql=path
--max-loras 4
--max-lora-rank 16
--limit-mm-per-prompt image=1
--speculative-model draft
--num-speculative-tokens 5
--speculative-max-model-len 2048
--use-v2-block-manager
--api-key token-abc123
""".strip().splitlines()


def say(capsys, *args: str) -> str:
    """Return what parsing the command line writes on stderr."""
    serve.make_context("serve", list(args))
    return capsys.readouterr().err


@pytest.mark.parametrize("line", SCRIPTS)
def test_every_flag_of_a_script_is_taken(line, capsys):
    flag, *rest = line.split()
    said = say(capsys, flag, *rest)
    if flag in (*SWITCHES, *SETTINGS):
        assert said.startswith(f"quire: {line} ") and said.count("\n") == 1
    else:
        assert said == ""


@pytest.mark.parametrize("flag", SETTINGS)
def test_a_value_that_asks_for_nothing_is_no_news(flag, capsys):
    for value in SETTINGS[flag][0]:
        assert say(capsys, flag, value) == ""
    assert "7" in say(capsys, flag, "7")


@pytest.mark.parametrize("flag", SWITCHES)
def test_a_switch_that_is_off_is_no_news(flag, capsys):
    assert say(capsys) == say(capsys, f"--no-{flag.removeprefix('--')}") == ""
    assert flag in say(capsys, flag)


def test_they_are_not_in_the_help():
    shown = serve.get_help(serve.make_context("serve", []))
    assert not [flag for flag in (*SWITCHES, *SETTINGS) if f"{flag} " in shown]


def test_the_form_of_older_scripts_starts(device):
    arguments = ["--model", "quire-tiny", "--device", device, "--memory", "64MiB", "--port", "0"]
    process = ServeProcess(
        [*arguments, "--threads", "1", "-tp", "1"], command=["quire.cli.api_server"]
    )
    try:
        assert process.wait_ready().startswith("http://127.0.0.1:")
        assert process.end() == 0, process.stderr
    finally:
        if process.popen.returncode is None:
            process.popen.kill()
            process.end()
