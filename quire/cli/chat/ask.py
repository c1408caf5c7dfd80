"""``quire ask``: one question to a running server, its answer printed as events arrive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from quire.cli.chat.prompt_text import read_prompt
from quire.cli.flags.sampling_flags import sampling_flags
from quire.cli.server_connection import base_url_option, connect, events, request

if TYPE_CHECKING:
    from quire.bench.load_client import Event


@click.command()
@click.argument("prompt")
@base_url_option
@click.option("--model", help="one of the server's models; without it the server decides")
@click.option("--system", help="system prompt")
@sampling_flags
def ask(
    prompt: str, base_url: str, model: str | None, system: str | None, sampling: dict[str, Any]
) -> None:
    """Ask a running server PROMPT (- reads stdin) and print the answer as it arrives.

    QUIRE_API_KEY is sent as the key. Reasoning that the server sets apart is not printed. Exit code
    1 when the server refuses, fails, or goes away before the end.
    """
    text = read_prompt(prompt)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    body = {"messages": messages, "stream": True, **sampling}
    if model is not None:
        body["model"] = model
    connection, prefix = connect(base_url)
    try:
        response = request(connection, "POST", f"{prefix}/v1/chat/completions", body)
        reason = _print(events(response))
    except KeyboardInterrupt:
        raise click.Abort from None  # click would add an empty line.
    finally:
        connection.close()
    if reason not in (None, "stop"):
        click.echo(f"quire: the answer was cut: {reason}", err=True)


def _print(events: Iterator[Event]) -> str | None:
    """Write the text of ``events`` at once; return why the answer ended."""
    reason = None
    shown = False
    try:
        for event in events:
            for choice in event.choices:
                reason = choice.finish_reason or reason
                if choice.delta is not None and choice.delta.content:
                    shown = True
                    sys.stdout.write(choice.delta.content)
                    sys.stdout.flush()
    finally:
        if shown:  # What is said on stderr begins a line.
            sys.stdout.write("\n")
            sys.stdout.flush()
    return reason
