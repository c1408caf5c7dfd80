"""A conversation's loop in a terminal: lines in, answers as they grow; who answers is not its."""

from __future__ import annotations

import contextlib
import sys

import click

from quire.cli.chat.chat_session import ChatSession
from quire.core.errors import QuireError

#: Around a text of several lines.
QUOTES = '"""'


def converse(session: ChatSession, name: str) -> None:
    """Talk until the end of the input; ``name`` is the model's.

    Answers appear on stdout, all else on stderr.
    """
    from rich.console import Console

    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # line editing and history for input()

            # A terminal then marks what is pasted, so that lines of it are one message.
            readline.parse_and_bind("set enable-bracketed-paste on")
        notes.print(f"{name}. /help lists commands, Ctrl-D leaves.", style="dim")
    while (line := _read_line()) is not None:
        try:
            if line.startswith("/"):
                note = session.run_command(line)
                if note is None:
                    break
                if note:
                    notes.print(note, style="dim")
            elif line.strip():
                session.ask(line)
            if session.wants_answer:
                notes.print(_show_answer(session), style="dim")
        except QuireError as error:
            notes.print(str(error), style="red")


def _read_line() -> str | None:
    """Return the next line, or None at the end of the input."""
    if not sys.stdin.isatty():
        return next(iter(sys.stdin), None)
    while True:
        try:
            return _read_quoted(input("> "))
        except EOFError:
            click.echo(err=True)
            return None
        except KeyboardInterrupt:
            click.echo("\n(Ctrl-D or /exit leaves)", err=True)


def _read_quoted(line: str) -> str:
    """Return a line, or all lines of a text that stands between three quotes."""
    text = line.lstrip()
    if not text.startswith(QUOTES):
        return line
    text = text.removeprefix(QUOTES)
    while not text.rstrip().endswith(QUOTES):
        text += "\n" + input("... ")
    return text.rstrip().removesuffix(QUOTES).strip("\n")


def _show_answer(session: ChatSession) -> str:
    """Write the answer as it grows; return the line about its speed."""
    from quire.cli.chat.answer_view import show_answer
    from quire.cli.chat.echo_off import silent_input
    from quire.llm.interrupts import collect_interrupts

    with collect_interrupts() as interrupted, silent_input() as forget_keys:
        show_answer(session.answer(stopped=lambda: bool(interrupted)))
        if interrupted:
            forget_keys()  # else lines that were typed ahead would ask for more
    return f"[{session.last_summary}{', stopped' if interrupted else ''}]"
