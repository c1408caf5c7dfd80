"""``quire top``: the options, and the loop that reads, draws and ends."""

from __future__ import annotations

import json
import os
import sys
import time
from queue import Empty, SimpleQueue

import click

from quire.cli.server_connection import base_url_option
from quire.cli.top.reading import Reading
from quire.cli.top.server_reader import ServerReader, take_reading
from quire.cli.top.terminal import keys_at_once, signals_noted
from quire.cli.top.watched import Watched
from quire.core.errors import QuireError
from quire.planner import machine_speed

#: Readings sooner after one another would load the server for figures too quick to read.
MIN_SECONDS, MAX_SECONDS = 0.1, 3600.0
#: A terminal that has become larger or smaller is drawn anew this soon; a signal is seen as soon.
REDRAW_SECONDS = 0.5
#: Columns of a view that goes into a file.
FILE_WIDTH = 100
END_KEYS = b"qQ\x03\x04"

_seconds = click.FloatRange(MIN_SECONDS, MAX_SECONDS)


@click.command()
@base_url_option
@click.option(
    "--interval", type=_seconds, default=1.0, show_default=True, help="Seconds between readings."
)
@click.option(
    "--window",
    type=_seconds,
    default=10.0,
    show_default=True,
    help="Seconds that rates and percentiles cover.",
)
@click.option("--once", is_flag=True, help="Print one view after an interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each reading.")
def top(base_url: str, interval: float, window: float, once: bool, as_json: bool) -> None:
    """Watch a running server: models, requests, tokens, latencies, KV cache, and what is wrong.

    q or Ctrl-C ends it. Where stdout is no terminal it prints one view, as --once does.
    QUIRE_API_KEY is sent as the key. How much of this machine's memory bandwidth and compute a
    server here reaches is shown once `quire doctor` has measured them.
    """
    machine = machine_speed.remembered()
    watched = Watched(base_url, window, take_reading(base_url), machine)
    if as_json or once or not sys.stdout.isatty():
        _print(watched, interval, as_json, endless=as_json and not once)
    else:
        _watch(watched, interval)


def _print(watched: Watched, interval: float, as_json: bool, endless: bool) -> None:
    while True:
        time.sleep(interval)
        try:
            watched.add(take_reading(watched.url))
        except QuireError as error:
            if not endless:
                raise
            watched.add(error)
        if as_json:
            click.echo(json.dumps(watched.as_json()))
            sys.stdout.flush()
        else:
            _print_view(watched)
        if not endless:
            return


def _print_view(watched: Watched) -> None:
    from rich.console import Console

    from quire.cli.top.view import View

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    console.print(View(watched.shown()))


def _watch(watched: Watched, interval: float) -> None:
    """Draw each reading until a key or a signal ends it; the terminal is then as it was."""
    from rich.console import Console
    from rich.live import Live

    from quire.cli.top.view import View

    console = Console(highlight=False, markup=False, emoji=False)
    found: SimpleQueue[Reading | QuireError] = SimpleQueue()
    wake, woken = os.pipe()

    def on_reading(reading: Reading | QuireError) -> None:
        found.put(reading)
        os.write(woken, b".")

    reader = ServerReader(watched.url, interval, on_reading)

    def view() -> View:
        return View(watched.shown("q ends"))

    try:
        with (
            signals_noted() as ended,
            keys_at_once(wake) as keys,
            Live(view(), console=console, screen=True, auto_refresh=False) as live,
        ):
            reader.start()
            while ended.exit_code is None and not set(keys.wait(REDRAW_SECONDS)) & set(END_KEYS):
                _take_all(found, watched)
                live.update(view(), refresh=True)
        if ended.exit_code is not None:
            raise click.exceptions.Exit(ended.exit_code)
    finally:
        reader.stop()


def _take_all(found: SimpleQueue[Reading | QuireError], watched: Watched) -> None:
    while True:
        try:
            watched.add(found.get_nowait())
        except Empty:
            return
