"""``quire pull``: bring a model's files into the hub cache before they are needed."""

from __future__ import annotations

import click


@click.command()
@click.argument("model")
@click.option("--revision", help="Branch, tag or commit; default: the main branch.")
def pull(model: str, revision: str | None) -> None:
    """Download MODEL (a hub id such as org/name) and print the folder that holds it.

    Needs the network unless the files are already in the cache. HF_HOME names the cache, HF_TOKEN
    opens gated models, HF_HUB_OFFLINE=1 forbids the network.
    """
    from quire.models.hub import download_model

    click.echo(download_model(model, revision))
