"""Templates are compiled and rendered within limits, with the values that they would have here."""

from __future__ import annotations

import json
import marshal
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from quire.core.errors import CapacityError, ConfigError, RequestError
from quire.system import sandboxes
from quire.system.sandboxes import Sandbox, Sandboxes
from quire.text.templates import template_processes
from quire.text.templates.chat_template import ChatTemplate, check_template

USER = [{"role": "user", "content": "Hi"}]
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def render(source: str, **kwargs: object) -> str:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(USER, **kwargs)


def test_a_template_that_never_ended_held_up_the_server(monkeypatch):
    """It was rendered on the event loop, without a limit."""
    monkeypatch.setattr(template_processes, "RENDER_SECONDS", 0.2)
    with pytest.raises(RequestError, match=r"takes longer than 0\.2 s. Change them") as caught:
        render(LOOPS)
    assert caught.value.param == "messages"
    with pytest.raises(ConfigError, match="got one that takes longer"):
        check_template("{{ messages }}" + LOOPS)
    monkeypatch.undo()
    assert render("{{ bos_token }}{{ messages[0].content }}") == "<s>Hi"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'a' * 6000000 }}", "has constants of more than 4194304 characters"),
        ("{{ 'a' * 4000000000 }}", "takes more memory or deeper nesting than a template may have"),
        ("{{ messages[0].role * 1000000000 }}", "takes more memory or deeper nesting"),
        ("{% for i in range(9999) %}{{ 'a' * 1000 }}{% endfor %}", "writes more than 10"),
    ],
)
def test_sixty_bytes_of_a_template_took_all_memory(source, reason):
    """Jinja computed its constants in the server, which had 18 GiB when the kernel ended it.

    Where there was an error, it was told as "it says: .".
    """
    with pytest.raises(RequestError, match=f"template must accept the messages; it {reason}"):
        render(source)
    with pytest.raises(ConfigError, match=f"got one that {reason}"):
        check_template("{{ messages }}" + source)


def test_what_a_template_raises_is_told_up_to_a_length():
    with pytest.raises(RequestError, match="it says: Roles must alternate. Change them"):
        render("{{ raise_exception('Roles must alternate') }}")
    with pytest.raises(RequestError) as caught:
        render("{{ raise_exception('a' * 100000) }}")
    assert len(str(caught.value)) < 11_000


def test_a_template_that_refuses_one_question_can_be_a_template():
    check_template("{{ messages[0].tool_calls[0] or raise_exception('no') }}")


@pytest.mark.parametrize(
    "value",
    [
        -(2**70),
        [1e308 * 10, -0.0, 5e-324],
        {"z": 1, "a": {"é": None}, "m": True},
        "\x00 \U0001f388",
    ],
)
def test_values_arrive_as_they_are(value):
    assert render("{{ value }}", value=value) == str(value)
    assert render("{{ value | tojson }}", value=value) == json.dumps(value, ensure_ascii=False)
    assert render("{{ other is defined }} {{ tools is none }}", value=value) == "False True"


def test_half_a_character_is_passed_on():
    assert render("{{ value }}", value="\ud800") == "\ud800"


def test_a_process_that_was_killed_is_replaced():
    processes = template_processes._Processes()
    assert processes.ask("{{ 1 + 1 }}", {}) == "2"
    sandbox = processes._sandboxes._take()
    os.kill(sandbox.pid, signal.SIGKILL)
    processes._sandboxes._give_back(sandbox)
    assert processes.ask("{{ 1 + 1 }}", {}) == "2"
    processes.close()


def test_an_interrupt_leaves_no_answer_to_the_next_template(monkeypatch):
    def interrupted(sandbox: Sandbox, message: bytes, seconds: float) -> bytes:
        sandbox._link.send_bytes(message)
        raise KeyboardInterrupt

    processes = template_processes._Processes()
    assert processes.ask("{{ 1 }}", {}) == "1"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Sandbox, "ask", interrupted)
        processes.ask("{{ 2 }}", {})
    assert processes.ask("{{ 3 }}", {}) == "3"
    processes.close()


def test_no_process_is_no_fault_of_the_template(monkeypatch):
    def start() -> Sandbox:
        raise OSError("no process")

    processes = template_processes._Processes()
    monkeypatch.setattr(template_processes, "_start", start)
    monkeypatch.setattr(template_processes, "_processes", processes)
    with pytest.raises(CapacityError, match="no process"):
        render("{{ 1 }}")
    processes.close()


def test_short_templates_of_many_threads_are_rendered_by_one_process(monkeypatch):
    """The first few chats at once started a process each: streams stood still for 0.3 s."""
    monkeypatch.setattr(sandboxes, "SPARE_SECONDS", 60.0)
    first = marshal.dumps(template_processes.RENDER_SECONDS)
    started = []

    def start():
        started.append(Sandbox("quire.text.templates.template_sandbox:render_in_sandbox", first))
        return started[-1]

    shared = Sandboxes(start)
    message = marshal.dumps(("{{ x }}", {"x": 1}))
    try:
        assert shared.ask(message, 60.0) == b"+1"
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: shared.ask(message, 60.0), range(40)))
    finally:
        shared.close()
    assert answers == [b"+1"] * 40 and len(started) == 1
