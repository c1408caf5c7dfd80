"""``quire show``: what is known of one model, here or on the hub; nothing is loaded or fetched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from quire.core.errors import ConfigError, QuireError
from quire.core.plurals import counted

if TYPE_CHECKING:
    from pathlib import Path

    from quire.store.named_models import NamedModel
    from quire.store.store import StoredModel


@click.command()
@click.argument("model")
@click.option("--hub", is_flag=True, help="Ask the hub which GGUF files there are, and which fit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--modelfile", is_flag=True, help="Print a Modelfile, which quire create -f reads.")
def show(model: str, hub: bool, as_json: bool, modelfile: bool) -> None:
    """Show what is known of MODEL: its shape, its size, its licence, what goes with it.

    MODEL is a name that quire list shows, a folder, a GGUF file, or a name of the catalogue: of one
    that was not pulled yet, what the catalogue says. With --hub it is a hub id such as org/name.
    """
    if hub:
        from quire.cli.models.hub_offer import show_offer

        show_offer(model, as_json)
        return
    from quire.cli.models.list import named_summary
    from quire.store.named_models import named_model
    from quire.store.store import Store

    found, named = Store().find(model) or Store().look_at(model), named_model(model)
    if found is not None and found.path is not None:
        facts = _facts(found)
    elif named is not None:
        facts = {**named_summary(named), "memory": _memory(None, named)}
        facts |= {"problem": f"not on this machine: quire pull {model}"}
    elif found is not None:
        facts = {"name": found.name, "problem": found.problem}
    else:
        from quire.store.hub import near_models

        raise ConfigError(
            f"[show] the model must be on this machine or in the catalogue; got {model!r}."
            f"{near_models(model)} quire list shows those that are; quire show --hub org/name asks "
            "the hub."
        )
    if modelfile:
        from quire.store.manifests import Preset
        from quire.store.modelfile import write_modelfile

        preset = Preset() if found is None else found.preset
        click.echo(write_modelfile(model, preset), nl=False)
        return
    if as_json:
        click.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        if value not in (None, "", {}, [], 0):
            click.echo(_line(key, value))


def _facts(model: StoredModel) -> dict[str, Any]:
    from quire.cli.models.list import summary
    from quire.models.config.config_reader import supported_config
    from quire.server.generation.answer_parser import AnswerFormats
    from quire.server.generation.model_facts import capabilities
    from quire.server.server_options import ServerOptions
    from quire.store.named_models import named_model
    from quire.text.templates.file_texts import read_file_texts

    assert model.path is not None
    named, details, preset = named_model(model.manifest.model), model.details, model.preset
    texts = read_file_texts(model.path, None, preset.template)
    template = texts.chat_template
    formats = AnswerFormats.resolve(ServerOptions(), template)
    return summary(model) | {
        "path": str(model.path),
        "layers": details.layers,
        "embedding": details.embedding,
        "licence": details.licence or (named.licence if named is not None else ""),
        "memory": _memory(model.path, named),
        "capabilities": capabilities(
            formats, not texts.fim_tokens.missing, supported_config(model.path)
        ),
        "sampling": dict(preset.sampling),
        "system": preset.system or "",
        "messages": [f"{message['role']}: {message['content']}" for message in preset.messages],
        "template": "" if template is None else template.templates.get("default", ""),
    }


def _memory(path: Path | None, named: NamedModel | None) -> str:
    """Say whether a model fits this machine, by its files or else by the catalogue."""
    from quire.cli.models.list import size
    from quire.llm.planning.fit import fit_files
    from quire.planner.memory_fit import fit_file, room_in
    from quire.store.named_models import largest_in_family
    from quire.system.machine import read_machine

    machine = read_machine()
    try:
        fit = fit_files(path, machine) if path is not None else None
    except QuireError as error:  # it cannot be loaded at all
        return str(error)
    if fit is None:
        assert named is not None
        fit = fit_file(named.nbytes, machine.free_bytes)
    about = "" if fit.context is not None else "about "
    said = f"needs {about}{size(fit.needed_bytes)} of {size(fit.budget_bytes)}"
    if fit.fits:
        longest = f"; requests of up to {counted(fit.context, 'token')} fit" if fit.context else ""
        return said + longest
    room = room_in(machine.free_bytes)
    other = largest_in_family(named, room) if named is not None else None
    return f"{said}: does not fit" + (f"; {other.name} would" if other is not None else "")


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
