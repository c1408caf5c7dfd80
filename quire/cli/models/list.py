"""``quire list``: the models on this machine by name, or those that a short name leads to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from quire.cli.table import print_table

if TYPE_CHECKING:
    from quire.store.named_models import NamedModel
    from quire.store.store import StoredModel


@click.command("list")
@click.option("--catalogue", is_flag=True, help="Show the short names that can be pulled instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(catalogue: bool, as_json: bool) -> None:
    """Show the models on this machine: pulled, made by quire create, and the one inside.

    What is missing or was changed since it was pulled is said below the table.
    """
    if catalogue:
        _show_catalogue(as_json)
        return
    from quire.store.hub_download import unfinished
    from quire.store.store import Store

    models = Store().list()
    if as_json:
        click.echo(json.dumps([summary(model) for model in models]))
        return
    print_table([
        ("NAME", "SIZE", "QUANTIZATION", "MODIFIED"),
        *(
            (
                model.name,
                size(model.nbytes) if model.files else "-",
                model.details.quantization or "-",
                model.manifest.modified.astimezone().strftime("%Y-%m-%d %H:%M"),
            )
            for model in models
        ),
    ])  # fmt: skip
    for model in models:
        if model.problem:
            click.echo(f"{model.name}: {model.problem}")
    for repository, path in unfinished():
        click.echo(
            f"{repository}: {size(path.stat().st_size)} of a pull that was given up; quire pull "
            f"resumes it, quire rm {repository} deletes it"
        )


def summary(model: StoredModel) -> dict[str, Any]:
    """Return what is told of a model in JSON."""
    details = model.details
    return {
        "name": model.name,
        "model": model.manifest.model,
        "parent": model.manifest.parent,
        "digest": model.digest,
        "bytes": model.nbytes,
        "architecture": details.architecture,
        "parameters": details.parameters,
        "quantization": details.quantization,
        "context": details.context,
        "modified": model.manifest.modified.isoformat(),
        "problem": model.problem or None,
    }


def size(nbytes: int) -> str:
    """Return bytes as people read them."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def _show_catalogue(as_json: bool) -> None:
    from quire.store.named_models import catalogue

    models = list(catalogue().values())
    if as_json:
        click.echo(json.dumps([named_summary(model) for model in models]))
        return
    print_table([
        ("NAME", "SIZE", "PARAMETERS", "QUANTIZATION", "LICENCE"),
        *((m.name, size(m.nbytes), m.parameters, m.quantization, m.licence) for m in models),
    ])  # fmt: skip


def named_summary(model: NamedModel) -> dict[str, Any]:
    """Return what is known of a model of the catalogue before it is there, for JSON."""
    return {
        "name": model.name,
        "repository": model.repository,
        "commit": model.commit,
        "file": model.file,
        "sha256": model.sha256,
        "bytes": model.nbytes,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "quantization": model.quantization,
        "context": model.context,
        "licence": model.licence,
        "sampling": dict(model.sampling),
    }
