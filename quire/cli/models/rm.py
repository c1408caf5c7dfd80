"""``quire rm``: remove a name, and the files that only this name uses."""

from __future__ import annotations

import click

from quire.cli.models.list import size


@click.command()
@click.argument("models", metavar="NAME...", nargs=-1, required=True)
def rm(models: tuple[str, ...]) -> None:
    """Remove names that quire list shows.

    Their files go from the hub's cache and Quire's, unless another name uses them; other programs
    may share that cache. Files of your own, which quire create gave a name, stay. A server that
    has such a model loaded refuses new requests for it, and lets it go when the others have ended.
    """
    from quire.store.store import Store

    for name in models:
        removed = Store().remove(name)
        line = f"removed {removed.name}, {size(removed.freed_bytes)} freed"
        if removed.shared_with:
            line += f"; its files stay for {', '.join(removed.shared_with)}"
        click.echo(line)
