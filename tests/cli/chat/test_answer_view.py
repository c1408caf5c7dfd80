"""How an answer looks on a terminal while it grows, and what typing does meanwhile."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import signal
import subprocess
import sys
import termios

import pytest
from rich.console import Console

from quire.cli.chat.answer_view import AnswerView, show_answer
from tests.commands import environment

ANSWER = """# Fruit

These are **fruits** that all children know and that are
sold *everywhere* in the world.

- apples
- pears <b>

```python
print("x")
```

The \x1b[2Jend
"""


def drawn(text: str, width: int) -> list[str]:
    """Return the lines that stay when a text has come letter by letter."""
    file = io.StringIO()
    view = AnswerView(
        Console(file=file, force_terminal=True, width=width), clock=iter(range(999)).__next__
    )
    for letter in text:
        view.add(letter)
    view.end()
    # What was drawn and then cleared begins with a move to the first column.
    screen: list[str] = [""]
    for part in re.split(r"(\n|\r|\x1b\[[0-9;?]*[A-Za-z])", file.getvalue()):
        if part == "\n":
            screen.append("")
        elif part == "\x1b[1A":
            screen.pop()
        elif part == "\x1b[2K" or part == "\r":
            screen[-1] = ""
        elif not part.startswith("\x1b["):
            screen[-1] += part
    return [line.rstrip() for line in screen]


def test_markdown_is_drawn_and_words_wrap():
    lines = drawn(ANSWER, 40)
    assert [line.strip() for line in lines] == [
        "Fruit", "",
        "These are fruits that all children know", "and that are",
        "sold everywhere in the world.", "",
        "• apples", "• pears <b>", "",
        'print("x")', "",
        "The \ufffd[2Jend", "",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "\n", "a", "- a\n- b", "```\nopen", "1. a\n\n2. b\n\nc"])
def test_any_text_is_shown_once(text):
    words = re.findall(r"[a-z]+", " ".join(drawn(text, 40)))
    assert words == re.findall(r"[a-z]+", text)


def test_a_separator_of_unicode_cut_a_paragraph_in_two():
    """Lines were counted by Python's rules where Markdown has its own."""
    assert "*" not in "".join(drawn("**a\u2028\u2028b**\n\nend", 40))


def test_a_pipe_gets_the_text_itself(capsys):
    show_answer(iter(["# A", " **b**\n", "c"]))
    assert capsys.readouterr().out == "# A **b**\nc\n"


PROGRAM = """
import os, sys, time
from quire.cli.chat.echo_off import silent_input
with silent_input() as forget_keys:
    print("silent", flush=True)
    if sys.argv[1] == "raises":
        raise ValueError
    if sys.argv[1] == "waits":
        time.sleep(60)
    os.read(2, 1)
    if sys.argv[1] == "forgets":
        forget_keys()
print("open", flush=True)
sys.stdout.write(sys.stdin.readline())
"""


@pytest.fixture
def terminal():
    main, other = pty.openpty()
    yield main, other
    for descriptor in (main, other):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def echoes(terminal: tuple[int, int]) -> bool:
    return bool(termios.tcgetattr(terminal[1])[3] & termios.ECHO)


def start(
    terminal: tuple[int, int], what: str
) -> tuple[subprocess.Popen[bytes], io.BufferedWriter]:
    gate, opens = os.pipe()  # stands for the answer: its end is the answer's
    command = [sys.executable, "-c", PROGRAM, what]
    pipes = {"stdin": terminal[1], "stdout": subprocess.PIPE, "stderr": gate}
    process = subprocess.Popen(command, **pipes, env=environment())
    os.close(gate)
    assert process.stdout.readline() == b"silent\n"
    return process, os.fdopen(opens, "wb")


@pytest.mark.parametrize(("what", "want"), [("reads", b"typed\n"), ("forgets", b"later\n")])
def test_keys_are_not_echoed_into_an_answer(terminal, what, want):
    """What people typed stood in the middle of the answer's words."""
    process, answer = start(terminal, what)
    assert not echoes(terminal)
    os.write(terminal[0], b"typed\n")
    answer.close()
    assert process.stdout.readline() == b"open\n"
    assert echoes(terminal)
    os.write(terminal[0], b"later\n")
    assert process.stdout.readline() == want
    process.stdout.close()
    assert process.wait(60) == 0


@pytest.mark.parametrize("what", ["raises", "waits"])
def test_a_terminal_echoes_again_after_a_crash_or_a_signal(terminal, what):
    process, answer = start(terminal, what)
    if what == "waits":
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == (1 if what == "raises" else -signal.SIGTERM)
    assert echoes(terminal)
    answer.close()
    process.stdout.close()
