"""A running server as the commands see it: one connection, requests, streams; prints nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from quire.core.errors import ConfigError, QuireError, RequestError
from quire.system import env

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

    from quire.bench.load_client import Event

DEFAULT_URL = "http://127.0.0.1:8000"
#: Hosts that are this machine.
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class NoServerError(ConfigError):
    """No server answers at the address."""


class ServerRefusal(RequestError):
    """A server answered with an error.

    Attributes:
        status: The answer's HTTP status.
        retry_after: The answer's ``Retry-After`` header; None without one.
    """

    def __init__(self, message: str, status: int, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


def _with_scheme(ctx: click.Context, param: click.Parameter, url: str) -> str:
    """Return ``http://host:port`` for ``host:port``, as OLLAMA_HOST has it."""
    return url if "://" in url else f"http://{url}"


base_url_option = click.option(
    "--base-url",
    default=DEFAULT_URL,
    show_default=True,
    callback=_with_scheme,
    help="a server with OpenAI's API; with or without /v1",
)


def connect(url: str) -> tuple[HTTPConnection, str]:
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
        # Not shown: it may hold a password.
        raise click.UsageError(
            "[server] --base-url must be http(s)://host[:port][/path]; got something else."
        )
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return kinds[parts.scheme](parts.hostname, port), prefix


def request(
    connection: HTTPConnection, method: str, path: str, body: dict[str, Any] | None = None
) -> HTTPResponse:
    """Send a request and return the answer once its head is here.

    Raises:
        NoServerError: No server answers.
        ConfigError: The key cannot be sent.
        ServerRefusal: The server answers with another status than 200.
    """
    from http.client import HTTPException

    from quire.bench.load_client import HEAD_BYTES, refusal

    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    key = env.get("QUIRE_API_KEY")
    if key is not None:
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("[server] QUIRE_API_KEY must be printable ASCII; got something else.")
        headers["Authorization"] = f"Bearer {key}"
    content = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        head = b"" if response.status == 200 else response.read(HEAD_BYTES)
    except ConnectionRefusedError as error:
        raise NoServerError(
            f"No server is running at {connection.host}:{connection.port}. Start one with "
            "`quire serve`, or give --base-url."
        ) from error
    except (OSError, HTTPException) as error:
        raise NoServerError(
            f"[server] {connection.host}:{connection.port} must answer; got "
            f"{_line(error) or type(error).__name__}. Is --base-url right?"
        ) from error
    if response.status != 200:
        told = _line(refusal(response.status, head))
        retry_after = response.getheader("Retry-After")
        raise ServerRefusal(f"[server] it refused: {told}", response.status, retry_after)
    return response


def read_answer(response: HTTPResponse) -> Any:
    """Return the JSON of a whole answer.

    Raises:
        QuireError: The answer is cut, or not JSON.
    """
    from http.client import HTTPException

    try:
        return json.loads(response.read())
    except (OSError, HTTPException, ValueError) as error:
        raise QuireError(f"[server] an answer must be JSON; got {_line(error)}.") from error


def events(response: HTTPResponse) -> Iterator[Event]:
    """Yield the events as they arrive, up to ``[DONE]``.

    Raises:
        QuireError: An event tells of an error or cannot be read, or the end did not arrive.
    """
    import msgspec

    from quire.bench.load_client import NO_JSON, Event, message_of

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
                f"[server] an event must be JSON of chat completions; got {error}."
            ) from error
        if event.error is not None:
            raise QuireError(f"[server] it failed: {_line(message_of(event.error))}")
        yield event
    raise QuireError(
        "[server] the answer must end with [DONE]; got the end of the connection. It is incomplete."
    )


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of the answer until it ends, or the connection breaks."""
    from http.client import HTTPException

    try:
        yield from response
    except (OSError, HTTPException):
        return  # The missing [DONE] tells.


def _line(message: object) -> str:
    return " ".join(str(message).split())
