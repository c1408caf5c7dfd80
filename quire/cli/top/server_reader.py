"""Asks a server for a reading over HTTP, again and again in a thread; it judges nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPException

from quire.cli.server_connection import ServerRefusal, connect, read_answer, request
from quire.cli.top.reading import Reading
from quire.cli.top.scrape import read_scrape
from quire.core.errors import QuireError

#: An exposition of a hundred models has 2 MB; what is larger is none.
MAX_SCRAPE_BYTES = 16 * 2**20
#: A server that takes this long says nothing useful any more.
TIMEOUT_SECONDS = 5.0


def take_reading(url: str) -> Reading:
    """Return what the server at ``url`` says now.

    Raises:
        QuireError: The server does not answer, refuses, or is not a Quire server.
    """
    text = _read_metrics(url)
    seconds = time.monotonic()
    scrape = read_scrape(text)
    models = dict.fromkeys(scrape.models, "ready")
    not_ready = _refusal(url, "/health/ready")
    try:
        models = _read_models(url)
    except ServerRefusal as error:
        if error.status != 503:
            raise
        # While its only model loads, a server refuses.
        models = dict.fromkeys(models, "loading")
    return Reading(seconds, scrape, models, not_ready)


def _read_metrics(url: str) -> str:
    connection, prefix = connect(url)
    connection.timeout = TIMEOUT_SECONDS
    with closing(connection):
        response = request(connection, "GET", f"{prefix}/metrics")
        try:
            body = response.read(MAX_SCRAPE_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise QuireError(f"[top] /metrics must come whole; got {error!r}.") from error
    if len(body) > MAX_SCRAPE_BYTES:
        raise QuireError(f"[top] /metrics must have at most {MAX_SCRAPE_BYTES:,} bytes; got more.")
    return body.decode(errors="replace")


def _read_models(url: str) -> dict[str, str]:
    connection, prefix = connect(url)
    connection.timeout = TIMEOUT_SECONDS
    with closing(connection):
        answer = read_answer(request(connection, "GET", f"{prefix}/models"))
    try:
        return {model["id"]: str(model["status"]["value"]) for model in answer["data"]}
    except (KeyError, TypeError) as error:
        raise QuireError("[top] /models must be a Quire server's; got other fields.") from error


def _refusal(url: str, path: str) -> str | None:
    """Return why a probe is red; None when it is green."""
    connection, prefix = connect(url)
    connection.timeout = TIMEOUT_SECONDS
    with closing(connection):
        try:
            request(connection, "GET", prefix + path)
        except ServerRefusal as error:
            return str(error).removeprefix("[server] it refused: ")
    return None


class ServerReader:
    """Takes readings in a thread until it is stopped, so that a slow server holds up no key.

    Args:
        url: The server's URL.
        interval: Seconds between readings.
        on_reading: A function called in the thread with each reading, or with the error that
            prevented one.
    """

    def __init__(
        self, url: str, interval: float, on_reading: Callable[[Reading | QuireError], None]
    ) -> None:
        self._url, self._interval, self._on_reading = url, interval, on_reading
        self._stop = threading.Event()
        # A daemon: the end does not wait for a server that does not answer.
        self._thread = threading.Thread(target=self._run, daemon=True, name="server reader")

    def start(self) -> None:
        """Take the first reading an interval from now."""
        self._thread.start()

    def stop(self) -> None:
        """Take no further reading."""
        self._stop.set()

    def _run(self) -> None:
        next_time = time.monotonic() + self._interval
        while not self._stop.wait(max(next_time - time.monotonic(), 0.0)):
            try:
                self._on_reading(take_reading(self._url))
            except QuireError as error:
                self._on_reading(error)
            next_time = max(next_time + self._interval, time.monotonic())
