"""``quire ps``: the models of a running server, and where each stands."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import click

from quire.cli.server_connection import base_url_option, connect, read_answer, request
from quire.cli.table import print_table


@click.command()
@base_url_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ps(base_url: str, as_json: bool) -> None:
    """Show the models of a running server: state, context, memory of the weights, requests.

    Adapters of a model come after it.
    """
    connection, prefix = connect(base_url)
    with closing(connection):
        found = read_answer(request(connection, "GET", f"{prefix}/models"))["data"]
        cards = read_answer(request(connection, "GET", f"{prefix}/v1/models"))["data"]
    for model in found:
        own = [card for card in cards if card.get("parent") == model["id"]]
        model["adapters"] = [{"id": card["id"], "path": card["root"]} for card in own]
    if as_json:
        click.echo(json.dumps(found))
        return
    rows: list[tuple[str, ...]] = [("NAME", "STATE", "CONTEXT", "WEIGHTS", "REQUESTS")]
    for model in found:
        rows.append(_row(model))
        rows += [
            (f"  {adapter['id']}", "adapter", "-", f"of {model['id']}", "-")
            for adapter in model["adapters"]
        ]
    print_table(rows)


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    from quire.core.counts import format_bytes

    meta = model.get("meta")
    state = model["status"]["value"]
    if meta is None:
        return model["id"], state, "-", "-", "-"
    same = meta.get("shares_weights_of")
    weights = f"of {same}" if same else format_bytes(int(meta["weight_bytes"] or 0))
    return model["id"], state, f"{meta['n_ctx']:,}", weights, str(meta["requests"])
