"""``quire ask``: one question to a running server, its answer printed as the events come."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from quire.cli.sampling_flags import sampling_flags
from quire.core import env
from quire.core.errors import ConfigError, QuireError, RequestError

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

    from quire.bench.client import Event


@click.command()
@click.argument("prompt")
@click.option(
    "--base-url",
    default="http://127.0.0.1:8000",
    show_default=True,
    help="a server with OpenAI's API; with or without /v1",
)
@click.option("--model", help="one of the server's models; without it the server decides")
@click.option("--system", help="system prompt")
@sampling_flags
def ask(
    prompt: str, base_url: str, model: str | None, system: str | None, sampling: dict[str, Any]
) -> None:
    """Ask a running server PROMPT (- reads stdin) and print the answer as it comes.

    QUIRE_API_KEY is sent as the key. Reasoning that the server sets apart is not printed. Exit code
    1 when the server refuses, fails, or goes away before the end.
    """
    # `echo question |` ends its text with a newline that nobody means to ask.
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    body = {"messages": messages, "stream": True, **sampling}
    if model is not None:
        body["model"] = model
    connection, prefix = _connect(base_url)
    try:
        response = _post(connection, f"{prefix}/v1/chat/completions", body)
        reason = _print(_events(response))
    except KeyboardInterrupt:
        raise click.Abort from None  # click would add an empty line.
    finally:
        connection.close()
    if reason not in (None, "stop"):
        click.echo(f"quire: the answer was cut: {reason}", err=True)


def _connect(url: str) -> tuple[HTTPConnection, str]:
    """Return a connection, not yet open, and the path before ``/v1``."""
    from http.client import HTTPConnection, HTTPSConnection

    kinds = {"http": HTTPConnection, "https": HTTPSConnection}
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in kinds or not parts.hostname or not plain:
        # Not shown: it may hold somebody's password.
        raise click.UsageError(
            "[ask] --base-url must be http(s)://host[:port][/path]; got something else."
        )
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return kinds[parts.scheme](parts.hostname, port), prefix


def _post(connection: HTTPConnection, path: str, body: dict[str, Any]) -> HTTPResponse:
    """Send the request and return the answer once its head is here.

    Raises:
        ConfigError: No server answers, or the key cannot be sent.
        RequestError: It answers with another status than 200.
    """
    from http.client import HTTPException

    from quire.bench.client import HEAD_BYTES, refusal

    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    key = env.get("QUIRE_API_KEY")
    if key is not None:
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("[ask] QUIRE_API_KEY must be printable ASCII; got something else.")
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request("POST", path, json.dumps(body).encode(), headers)
        response = connection.getresponse()
        head = b"" if response.status == 200 else response.read(HEAD_BYTES)
    except (OSError, HTTPException) as error:
        raise ConfigError(
            f"[ask] a server must answer at {connection.host}:{connection.port}; got "
            f"{_line(error) or type(error).__name__}. Start `quire serve`, or give --base-url."
        ) from error
    if response.status != 200:
        raise RequestError(f"[ask] the server refused: {_line(refusal(response.status, head))}")
    return response


def _events(response: HTTPResponse) -> Iterator[Event]:
    """Yield the events as they come, up to ``[DONE]``.

    Raises:
        QuireError: An event tells of an error or cannot be read, or the end did not come.
    """
    import msgspec

    from quire.bench.client import NO_JSON, Event, message_of

    decoder = msgspec.json.Decoder(Event)
    for line in _lines(response):
        if not line.startswith(b"data:"):
            continue  # Empty lines, and the comments that keep a silent connection open.
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = decoder.decode(data)
        except NO_JSON as error:
            raise QuireError(
                f"[ask] an event must be JSON of chat completions; got {error}."
            ) from error
        if event.error is not None:
            raise QuireError(f"[ask] the server failed: {_line(message_of(event.error))}")
        yield event
    raise QuireError(
        "[ask] the answer must end with [DONE]; got the end of the connection. It is incomplete."
    )


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of the answer until it ends, or the connection breaks."""
    from http.client import HTTPException

    try:
        yield from response
    except (OSError, HTTPException):
        return  # The missing [DONE] tells.


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


def _line(message: object) -> str:
    return " ".join(str(message).split())
