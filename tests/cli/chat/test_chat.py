"""``quire chat`` driven through pipes: answers on stdout, all else on stderr."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import ClassVar

import pytest

from quire.cli.chat.chat_session import ChatSession
from quire.core.errors import RequestError
from tests.cli.conftest import LONG
from tests.commands import COMMAND, environment

GREEDY = ("--temperature", "0", "--max-tokens", "6")


def test_a_conversation_with_commands(quire, model, tmp_path):
    saved, again = tmp_path / "saved.json", tmp_path / "again.json"
    script = [
        "/set max_tokens 5",
        "hello",
        "/retry",
        f"/save {saved}",
        "/clear",
        f"/load {saved}",
        "and you?",
        f"/save {again}",
        "/show",
        "/stats",
        "/exit",
        "never read",
    ]
    result = quire(
        "chat", str(model), *GREEDY, "--system", "Be brief.", stdin="\n".join(script) + "\n"
    )
    assert result.returncode == 0, result.stderr
    first = json.loads(saved.read_text())
    roles = [message["role"] for message in first["messages"]]
    assert roles == ["system", "user", "assistant"]
    assert first["sampling"]["max_tokens"] == 5
    second = json.loads(again.read_text())["messages"]
    assert second[:3] == first["messages"]
    assert second[3] == {"role": "user", "content": "and you?"}
    # The same question greedily asked twice has the same answer; only answers are on stdout.
    hello, other = first["messages"][2]["content"], second[4]["content"]
    assert result.stdout == f"{hello}\n{hello}\n{other}\n"
    assert "5 tokens, first after" in result.stderr
    assert f"{model}: 2,048 tokens of context\nsystem prompt: Be brief.\n" in result.stderr
    assert '"max_tokens": 5' in result.stderr


def test_mistakes_are_told_and_the_chat_goes_on(quire, model, tmp_path):
    script = [
        "/bogus",
        "/set temperature -1",
        "/set pages 3",
        "/set temperature hot",
        "/set n 2",
        "/set stop 3",
        "/load nowhere.json",
        "/save /nowhere/file",
        "/retry",
        "/help",
        "hello",
    ]
    result = quire("chat", str(model), *GREEDY, stdin="\n".join(script) + "\n")
    assert result.returncode == 0  # The end of the input ends the chat.
    errors = [line for line in result.stderr.splitlines() if line.startswith("[")]
    assert len(errors) == 10, result.stderr  # Nine mistakes and the answer's speed.
    assert "[temperature] must be a number; got 'hot'." in errors
    assert "/system TEXT" in result.stderr
    assert len(result.stdout) > 1


def test_an_answer_ends_where_the_context_ends(quire, model):
    args = ("--temperature", "0", "--max-tokens", "60", "--max-model-len", "64")
    result = quire("chat", str(model), *args, stdin="hello\n/set ignore_eos true\nhello\n")
    assert ", cut at the token limit]" in result.stderr, result.stderr


def test_an_answer_that_was_cut_is_continued(quire, tmp_path):
    """An answer without a limit ran on to the end of the context: 3,436 tokens until Ctrl-C."""
    saved = tmp_path / "saved.json"
    script = ["/continue", "/show", "/set max_tokens 3", "What is the capital of France?"]
    script += ["/set max_tokens 20", "/continue", f"/save {saved}"]
    args = ("--temperature", "0", "--generation-config", "none")
    result = quire("chat", "quire-tiny", *args, stdin="\n".join(script) + "\n")
    assert '"max_tokens": 1024' in result.stderr
    assert "[chat] /continue needs an answer before it; got none." in result.stderr
    assert ", cut at the token limit of 3; /continue resumes it]" in result.stderr
    messages = json.loads(saved.read_text())["messages"]
    assert messages[1:] == [{"role": "assistant", "content": "The capital of France is Paris."}]


class Thinker:
    """A model whose reasoning takes all the tokens that it may have."""

    defaults: ClassVar[dict[str, object]] = {}
    num_tokens, was_cut = 1024, True

    def answer(self, messages, sampling, stopped):
        yield ""

    def summary(self):
        return "1024 tokens, cut at the token limit"


def test_an_answer_that_never_began_is_not_continued():
    session = ChatSession(Thinker(), sampling={})
    session.ask("Hello")
    assert list(session.answer(stopped=lambda: False)) == [""]
    assert session.last_summary.endswith(
        "of 1,024 before the answer began; /set max_tokens N allows more"
    )
    with pytest.raises(RequestError, match="/continue needs an answer before it"):
        session.run_command("/continue")


def test_commands_and_settings_have_a_nearest_name_and_ollamas_forms():
    """A typing error had the list of all commands, /quit was unknown."""
    session = ChatSession(Thinker(), sampling={})
    for line, meant in {
        "/hlep": "Did you mean /help?",
        "/set temprature 1": "Did you mean temperature?",
        "/set temperature": "/set temperature VALUE",
    }.items():
        with pytest.raises(RequestError, match=re.escape(meant)):
            session.run_command(line)
    assert session.run_command("/set parameter top_p 0.5") == "top_p = 0.5"
    assert session.run_command('/set system "Be brief."') == "system prompt set"
    assert session.messages[0]["content"] == "Be brief."
    assert session.run_command("/QUIT") is None


def test_question_that_does_not_fit_is_taken_back(quire, model, tmp_path):
    saved = tmp_path / "saved.json"
    script = f"{'word ' * 100}\nhi\n/save {saved}\n"
    result = quire("chat", str(model), *GREEDY, "--max-model-len", "64", stdin=script)
    assert result.returncode == 0
    assert [m["role"] for m in json.loads(saved.read_text())["messages"]] == ["user", "assistant"]


def test_interrupt_stops_the_answer_and_not_the_chat(long_model, tmp_path):
    saved = tmp_path / "saved.json"
    command = [*COMMAND, "chat", str(long_model), "--temperature", "0", "--max-tokens", "16000"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, **LONG, env=environment()) as process:
        process.stdin.write(b"hello\n")
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(f"/save {saved}\n".encode(), timeout=60)
    assert process.returncode == 0, errors
    assert b", stopped]" in errors
    assert len(json.loads(saved.read_text())["messages"]) == 2
