"""``quire show --hub``: the GGUF files of a repository, and which of them fit this machine."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

import click

from quire.cli.models.list import size
from quire.cli.table import print_table
from quire.core.errors import ConfigError, ModelLoadError


def show_offer(model: str, as_json: bool) -> None:
    """Print a repository's files on the hub; the file that is taken without a tag is marked.

    Raises:
        ConfigError: The repository has no GGUF files, or the model is not of the hub.
        ModelLoadError: The repository does not exist, access is denied, or the hub cannot be
            reached.
    """
    from quire.planner.memory_fit import likely_bytes
    from quire.store.gguf_choice import choose_fitting, gguf_files, is_unreadable, kind_of
    from quire.store.hub import find_model, hub_repository
    from quire.store.hub_files import HubReference, ask_offer
    from quire.store.likely_fit import free_room

    repository = hub_repository(model)
    if repository is None:
        raise ConfigError(f"[show] --hub needs a model of the hub, such as org/name; got {model}.")
    sizes, room = ask_offer(HubReference(repository)).sizes, free_room()
    files = gguf_files(sizes)
    if not files:
        raise ConfigError(f"[show] --hub needs a repository with GGUF files; got {repository}.")
    pulled = find_model(repository)
    try:
        if pulled is not None and pulled.is_file():
            default = pulled.name
        else:
            default = PurePosixPath(choose_fitting(sizes, repository, room).name).name
    except ModelLoadError:  # none fits, or there are several models
        default = ""
    rows = []
    for name in sorted(files, key=lambda name: sizes[name] or 0):
        nbytes = sizes[name]
        if is_unreadable(name):
            verdict = "cannot be loaded"
        elif nbytes is None:
            verdict = "size unknown"
        else:
            verdict = "fits" if likely_bytes(nbytes) <= room else "does not fit"
        rows.append((name, kind_of(name), nbytes, verdict, PurePosixPath(name).name == default))
    if as_json:
        keys = ("file", "quantization", "bytes", "verdict", "default")
        click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return
    table: list[tuple[str, ...]] = [("FILE", "SIZE", "MEMORY", "VERDICT")]
    for name, _, nbytes, verdict, _ in rows:
        sizes_told = ("-", "-")
        if nbytes is not None:
            sizes_told = size(nbytes), f"about {size(likely_bytes(nbytes))}"
        table.append((name, *sizes_told, verdict))
    print_table(table)
    means = f"means {default}" if default else "alone means none of them"
    click.echo(
        f"{repository} {means}; {repository}:TAG takes another. {size(room)} of memory are free "
        "for a model."
    )
