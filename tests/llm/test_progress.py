"""Bars appear on a terminal only, and only where there is something to wait for."""

from __future__ import annotations

import io

import pytest

from quire.llm.progress import MIN_LOAD_BYTES, loading_bar, prompts_bar


class Terminal(io.StringIO):
    """A stderr that people look at."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    # Not a fixture: pytest puts its own stderr back between set-up and call.
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    return screen


def test_prompts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with prompts_bar(2, wanted=True) as advance:
        advance(30)
        advance(12)
    assert "2/2" in terminal.getvalue() and "42 tokens" in terminal.getvalue()


@pytest.mark.parametrize("num_prompts, wanted", [(1, True), (2, False)])
def test_no_bar_for_one_prompt_or_when_unwanted(
    monkeypatch: pytest.MonkeyPatch, num_prompts: int, wanted: bool
) -> None:
    terminal = open_terminal(monkeypatch)
    with prompts_bar(num_prompts, wanted) as advance:
        advance(3)
    assert terminal.getvalue() == ""


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with prompts_bar(5, wanted=True) as advance, loading_bar() as update:
        advance(3)
        update(1, 2 * MIN_LOAD_BYTES)
    assert capsys.readouterr() == ("", "")


def test_large_weights_have_a_bar_and_small_ones_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with loading_bar() as update:
        update(5, MIN_LOAD_BYTES - 1)
    assert terminal.getvalue() == ""
    with loading_bar() as update:
        update(MIN_LOAD_BYTES, 2 * MIN_LOAD_BYTES)
    assert "loading weights" in terminal.getvalue()
