"""``quire stop``: have a model of a running server go."""

from __future__ import annotations

from contextlib import closing

import click

from quire.cli.server_connection import base_url_option, connect, read_answer, request


@click.command()
@click.argument("model")
@base_url_option
def stop(model: str, base_url: str) -> None:
    """Unload MODEL when its requests have ended; the next request that names it loads it again.

    QUIRE_API_KEY is sent as the key, which needs the scope admin. The server itself goes on; end
    it with Ctrl-C or SIGTERM.
    """
    connection, prefix = connect(base_url)
    with closing(connection):
        response = request(connection, "POST", f"{prefix}/models/unload", {"model": model})
        held = read_answer(response)["was_loaded"]
    click.echo(f"{model} goes" if held else f"{model} was not loaded")
