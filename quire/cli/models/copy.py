"""``quire copy``: one more name for a model."""

from __future__ import annotations

import click


@click.command()
@click.argument("source")
@click.argument("name")
def copy(source: str, name: str) -> None:
    """Give the model SOURCE one more NAME; its files are shared.

    SOURCE is any model: a name that quire list shows, a folder or GGUF file, a hub id. What was
    called NAME before by quire copy or quire create is replaced.
    """
    from quire.store.store import Store

    Store().copy(source, name)
    click.echo(f"{name} is {source}")
