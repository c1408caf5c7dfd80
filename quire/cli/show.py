"""``quire show``: what is known of one model; nothing is loaded or fetched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from quire.models.store import StoredModel


@click.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(model: str, as_json: bool) -> None:
    """Show what is known of MODEL: its shape, its size, its licence, what goes with it.

    MODEL is a name that quire list shows, a folder, a GGUF file, or a name of the catalogue: of one
    that was not pulled yet, what the catalogue says.
    """
    from quire.cli.list import named_summary
    from quire.core.errors import ConfigError
    from quire.models.named_models import named_model
    from quire.models.store import Store

    found, named = Store().find(model) or Store().look_at(model), named_model(model)
    if found is not None and found.path is not None:
        facts = _facts(found)
    elif named is not None:
        facts = {**named_summary(named), "problem": f"not on this machine: quire pull {model}"}
    elif found is not None:
        facts = {"name": found.name, "problem": found.problem}
    else:
        raise ConfigError(
            f"[show] the model must be on this machine or in the catalogue; got {model!r}. "
            "quire list shows those that are; quire pull fetches one."
        )
    if as_json:
        click.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        if value not in (None, "", {}, [], 0):
            click.echo(_line(key, value))


def _facts(model: StoredModel) -> dict[str, Any]:
    from quire.cli.list import summary
    from quire.models.model_details import capabilities, read_template
    from quire.models.named_models import named_model

    assert model.path is not None
    named, details, preset = named_model(model.manifest.model), model.manifest.details, model.preset
    template = preset.template or read_template(model.path)
    return summary(model) | {
        "path": str(model.path),
        "layers": details.layers,
        "embedding": details.embedding,
        "licence": details.licence or (named.licence if named is not None else ""),
        "capabilities": capabilities(template),
        "sampling": dict(preset.sampling),
        "system": preset.system or "",
        "template": template,
    }


def _line(key: str, value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name} {item}" for name, item in value.items())
    elif isinstance(value, list):
        value = ", ".join(value)
    elif isinstance(value, int):
        value = f"{value:,}"
    if "\n" in value:
        indented = "\n".join(f"    {line}" for line in value.splitlines())
        return f"{key}\n{indented}"
    return f"{key:14}{value}"
