"""``quire run``, ``ps`` and ``stop`` with a real server that ``run`` starts."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from threading import Timer

import httpx2
import psutil
import pytest

from quire.store.hub import resolve_model
from tests.commands import run_quire
from tests.ports import free_ports
from tests.store.hub_stand_in import HubStandIn, serving
from tools.random_adapter import random_adapter
from tools.serve_process import ServeProcess

QUESTION = "What is the capital of France?"


@pytest.fixture
def url(tmp_path, monkeypatch):
    """An address where no server listens; what was started there is ended."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    port = str(free_ports())
    yield f"http://127.0.0.1:{port}"
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if {"serve", port} <= set(arguments):
            process.terminate()
            process.wait(60)


def quire(*arguments, input=""):
    return run_quire(*arguments, stdin=input, timeout=120)


def converse(arguments, lines):
    """Type lines into a terminal of the command; return what it shows."""
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "quire.cli.main", *arguments]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    os.write(main, "".join(f"{line}\n" for line in lines).encode())
    shown = b""
    with contextlib.suppress(OSError):  # its end
        while piece := os.read(main, 10_000):
            shown += piece
    os.close(main)
    assert process.wait(60) == 0, shown
    return shown.decode()


def test_a_server_is_started_used_again_and_emptied(url):
    base = ["--base-url", url]
    first = quire("run", "quire-tiny", QUESTION, *base)
    assert first.returncode == 0, first.stderr
    assert first.stdout == "The capital of France is Paris.\n"
    assert f"starting a server at {url}" in first.stderr
    piped = quire("run", "quire-tiny", "--verbose", *base, input=f"{QUESTION}\n")
    assert piped.stdout == first.stdout
    assert "starting" not in piped.stderr and "tokens, first after" in piped.stderr
    short = quire("run", "quire-tiny", QUESTION, "--max-tokens", "3", *base)
    assert "the answer was cut at 3 tokens. Give --max-tokens for more." in short.stderr
    lines = ['"""What is', 'the capital of France?"""', "/system Be brief.", "/show", "/stats"]
    lines += ["/nothing", "/bye"]
    both = quire("run", "quire-tiny", "capital", "of", "France?", *base, input="What is the\n")
    assert "Paris" in both.stdout, both.stderr
    talk = converse(["run", "quire-tiny", *base, "--keep-alive", "17m"], lines)
    assert "The capital of France is" in talk
    assert "\x1b[?2004h" in talk  # a terminal marks what is pasted: its lines are one message
    assert "quire-tiny" in talk and "ready" in talk and "got /nothing" in talk
    assert "quire-tiny: ready, 2,048 tokens of context" in talk and "prompt: Be brief." in talk
    held = httpx2.get(f"{url}/api/ps").json()["models"][0]
    left = datetime.fromisoformat(held["expires_at"]) - datetime.now(UTC)
    assert 15 < left.total_seconds() / 60 <= 17
    wrong = quire("run", "quire-tiny", "Hi", "--keep-alive", "soon", *base)
    assert wrong.returncode == 1 and "[keep_alive] must be seconds, or a" in wrong.stderr
    model, other = json.loads(quire("ps", "--json", *base).stdout)
    assert (other["id"], other["status"]["value"]) == ("quire-tiny-vision", "absent")
    assert (model["id"], model["status"]["value"]) == ("quire-tiny", "ready")
    assert quire("ps", *base).stdout.splitlines()[1].split()[:2] == ["quire-tiny", "ready"]
    assert quire("create", "tutor", "--from", "quire-tiny", "--system", "Hi").returncode == 0
    assert quire("run", "tutor", QUESTION, *base).returncode == 0
    stopped = quire("stop", "tutor", *base).stdout
    assert stopped == "Unloading tutor (and quire-tiny, which shares its weights).\n"
    end = time.monotonic() + 60
    while json.loads(quire("ps", "--json", *base).stdout)[0]["status"]["value"] != "absent":
        assert time.monotonic() < end
    assert quire("stop", "quire-tiny", *base).stdout == "quire-tiny was not loaded.\n"
    again = quire("run", "quire-tiny", "-", *base, input=QUESTION + "\n")
    assert again.stdout == first.stdout, again.stderr


def test_it_waits_for_a_server_that_is_loading():
    """The command ended with a 503 right after ``quire serve`` was started."""
    with ServeProcess(["quire-tiny"]) as serve:
        base = ["--base-url", serve.wait_listening()]
        while not (loading := psutil.Process(serve.popen.pid).children()):
            time.sleep(0.001)
        for process in loading:
            process.suspend()
            Timer(2.0, process.resume).start()
        said = quire("run", "quire-tiny", QUESTION, *base)
        assert said.stdout == "The capital of France is Paris.\n", said.stderr


def test_a_terminal_shows_thoughts_and_a_pipe_the_answer_alone():
    """A model that thinks for a minute showed nothing till its answer began."""
    with ServeProcess(["quire-tiny", "--reasoning-parser", "deepseek_r1"]) as serve:
        asked = ["run", "quire-tiny", QUESTION, "--base-url", serve.wait_listening()]
        assert quire(*asked).stdout == "\n"  # all of this model's text is a thought to that parser
        shown = converse(asked, [])
        thought = shown.index("The capital of France is Paris.")
        assert shown.index("Thinking…") < thought < shown.index("…done thinking.")


def test_a_folder_is_given_a_name_and_an_adapter_loaded(url, tmp_path):
    """The server answered HTTP 404 for a folder, and no command took an adapter."""
    base = ["--base-url", url]
    folder = tmp_path / "my model"
    shutil.copytree(resolve_model("quire-tiny"), folder)
    adapter = random_adapter(folder, tmp_path / "parrot", rank=32)
    wrong = quire("run", str(adapter), QUESTION, *base)
    assert wrong.returncode == 1 and f"quire run MODEL --lora {adapter}" in wrong.stderr
    greedy = ["--temperature", "0", "--max-tokens", "8"]
    said = quire("run", str(folder), QUESTION, "--lora", str(adapter), *greedy, *base)
    assert said.returncode == 0, said.stderr
    assert f"{folder} has the name my-model now" in said.stderr
    again = quire("run", str(folder), QUESTION, "--lora", str(adapter), *greedy, *base)
    assert again.stdout == said.stdout and "my-model-2" not in again.stderr
    plain = quire("run", "my-model", QUESTION, *base)
    assert plain.stdout == "The capital of France is Paris.\n" != said.stdout
    local = [str(folder), "--lora", str(adapter), *greedy]
    assert quire("chat", *local, input=f"{QUESTION}\n").stdout == said.stdout
    assert quire("generate", *local, "--chat", "-p", QUESTION).stdout == said.stdout
    rows = [line.split() for line in quire("ps", *base).stdout.splitlines()]
    assert rows[2][:2] == ["parrot", "adapter"] and "my-model" in rows[2]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a small model in several files."""
    files = {"Tiny-Q1_0.gguf": b"GGUF"}
    for kind in ("q8_0", "q4_0"):
        path = tmp_path / f"Tiny-{kind}.gguf"
        done = quire("convert", "quire-tiny", str(path), "--type", kind)
        assert done.returncode == 0, done.stderr
        files[path.name] = path.read_bytes()
    stand_in = HubStandIn({"org/tiny": files, "org/huge": {"Huge-Q4_K_M.gguf": b"GGUF"}})
    stand_in.sizes = {"Huge-Q4_K_M.gguf": 10**15}
    with serving(stand_in):
        monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "")
        yield stand_in


def test_a_repository_is_pulled_as_it_fits_and_removed_while_it_answers(url, hub):
    base = ["--base-url", url]
    huge = quire("run", "org/huge", "Hi", *base)
    assert huge.returncode == 1 and "must fit in this machine's memory" in huge.stderr
    first = quire("run", "org/tiny", QUESTION, *base)
    assert first.stdout == "The capital of France is Paris.\n", first.stderr
    assert "org/tiny: Q4_0, 2.7 MiB, of 3 files; Q1_0 cannot be loaded" in first.stderr
    assert hub.fetched() == {"Tiny-q4_0.gguf"}
    assert quire("run", "org/tiny", QUESTION, *base).stderr == ""
    assert [line.split()[0] for line in quire("list").stdout.splitlines()] == [
        "NAME", "quire-tiny", "quire-tiny-vision", "org/tiny",
    ]  # fmt: skip
    body = {"model": "org/tiny", "prompt": "The", "max_tokens": 1500, "ignore_eos": True}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body | options, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        removed = quire("rm", "org/tiny")
        assert "removed org/tiny, 2.9 MB freed" in removed.stdout, removed.stderr
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]" and '"completion_tokens":1500' in rest[-2]
    gone = httpx2.post(f"{url}/v1/completions", json=body)
    assert gone.status_code == 404


def test_a_prompt_of_nothing_is_refused(url):
    """It was an endless conversation of no lines, which started a server."""
    found = quire("run", "quire-tiny", "--base-url", url, input="\n")
    assert found.returncode == 2 and "a prompt must have text" in found.stderr
    assert "starting" not in found.stderr


@pytest.mark.parametrize("command", [("run", "quire-tiny"), ("ask",)])
def test_bytes_that_are_no_text_are_told_before_anything_is_asked(command, url):
    """The server's refusal told of a surrogate pair in a body that the user never saw."""
    found = quire(*command, "é\udcffb", "--base-url", url)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.count("\n") == 1 and "the byte 0xff at 2 is no UTF-8" in found.stderr


def test_a_model_that_no_hub_has_is_refused_with_a_reason(url):
    found = quire("run", "no/such-model", "Hi", "--base-url", url)
    assert found.returncode == 1
    assert "no/such-model" in found.stderr and "Traceback" not in found.stderr


def test_a_wrong_name_left_a_server_that_stayed(url):
    """It was started first, and then the name was looked for."""
    found = quire("run", "smolm2", "Hi", "--base-url", url)
    assert found.returncode == 1 and "Did you mean smollm2" in found.stderr
    assert "starting" not in found.stderr


def test_no_server_is_started_elsewhere():
    found = quire("run", "quire-tiny", "Hi", "--base-url", "http://192.0.2.1:1/")
    assert found.returncode == 1
    assert "192.0.2.1:1" in found.stderr and "--base-url" in found.stderr


def test_nothing_is_pulled_for_a_server_elsewhere(url, hub):
    """A refusal of another machine's server had the model fetched to this one."""
    elsewhere = hub.url.replace("127.0.0.1", "127.1")  # knows no such route: a 404
    found = quire("run", "org/tiny", "Hi", "--base-url", elsewhere)
    assert found.returncode == 1 and "HTTP 404" in found.stderr, found.stderr
    assert not hub.fetched()


@pytest.mark.parametrize("command", [["ps"], ["stop", "quire-tiny"]])
def test_without_a_server_the_others_say_so(command, url):
    found = quire(*command, "--base-url", url)
    assert found.returncode == 1
    place = url.removeprefix("http://")
    assert f"No server is running at {place}. Start one with `quire serve`" in found.stderr
