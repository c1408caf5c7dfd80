"""Prompts of the command line: arguments, pipes, and both."""

import os
import sys

import pytest

from quire.cli.chat import prompt_text
from quire.cli.chat.prompt_text import joined_prompt
from quire.core.errors import ConfigError


@pytest.fixture
def pipe(monkeypatch):
    """A pipe as stdin; returns its other end."""
    read, write = os.pipe()
    with os.fdopen(read, errors="surrogateescape") as stdin, os.fdopen(write, "wb") as source:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield source


@pytest.mark.parametrize(
    ("piped", "argument", "expected"),
    [
        (b"The sky is blue.\n", "What color is it?", "The sky is blue.\nWhat color is it?"),
        (b"a\n\nb\n\n", "Sum up", "a\n\nb\n\nSum up"),
        (b"\n", "Hi", "Hi"),
        (b"", "Hi", "Hi"),
        (b"all of it\n", "-", "all of it"),
        (b"all of it\n", None, "all of it"),
        ("\u00e9 \u6f22".encode(), "Hi", "\u00e9 \u6f22\nHi"),
    ],
)
def test_a_piped_text_was_dropped_where_a_prompt_was_given(pipe, piped, argument, expected):
    """``quire run MODEL "Sum this up" < file`` asked without the file."""
    pipe.write(piped)
    pipe.close()
    assert joined_prompt(argument) == expected


@pytest.mark.parametrize(("piped", "rule"), [(b"a\xffb", "0xff at 1"), (b"x" * 65, "at most 64")])
def test_a_pipe_without_end_or_text_is_refused(pipe, monkeypatch, piped, rule):
    monkeypatch.setattr(prompt_text, "MAX_CHARACTERS", 64)
    pipe.write(piped)
    pipe.flush()
    if len(piped) <= 64:
        pipe.close()
    with pytest.raises(ConfigError, match=rule):
        joined_prompt("Hi")


def test_people_are_told_that_a_silent_pipe_is_awaited(pipe, monkeypatch, capsys):
    monkeypatch.setattr(prompt_text, "TELL_SECONDS", 0.0)
    prompt_text._tell_of_wait()
    assert "waiting for the end of stdin" in capsys.readouterr().err
    pipe.close()
    assert joined_prompt("Hi") == "Hi"


def test_a_closed_stdin_is_none(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert (joined_prompt("Hi"), joined_prompt(None)) == ("Hi", None)
