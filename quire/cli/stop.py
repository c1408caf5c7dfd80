"""``quire stop``: have a model of a running server go."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from quire.cli.server_connection import base_url_option, connect, read_answer, request


@click.command()
@click.argument("model")
@base_url_option
def stop(model: str, base_url: str) -> None:
    """Unload MODEL when its requests have ended; the next request that names it loads it again.

    Names that share its weights are unloaded with it. QUIRE_API_KEY is sent as the key, which needs
    the scope admin. The server itself keeps running; end it with Ctrl-C or SIGTERM.
    """
    connection, prefix = connect(base_url)
    with closing(connection):
        models = read_answer(request(connection, "GET", f"{prefix}/models"))["data"]
        response = request(connection, "POST", f"{prefix}/models/unload", {"model": model})
        held = read_answer(response)["was_loaded"]
    if not held:
        click.echo(f"{model} was not loaded.")
        return
    others = _sharing(model, models)
    verb = "shares" if len(others) == 1 else "share"
    told = f" (and {_joined(others)}, which {verb} its weights)" if others else ""
    click.echo(f"Unloading {model}{told}.")


def _sharing(name: str, models: list[dict[str, Any]]) -> list[str]:
    """Return the loaded models that have one engine with a model."""
    engines = {}
    for model in models:
        meta = model.get("meta")
        if meta is not None:
            engines[model["id"]] = meta.get("shares_weights_of") or model["id"]
    mine = next((m["id"] for m in models if name in (m["id"], *m["aliases"])), name)
    engine = engines.get(mine)
    return [other for other, its in engines.items() if its == engine and other != mine]


def _joined(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
