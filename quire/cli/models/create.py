"""``quire create``: a name for a model with a system prompt, a template and defaults of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.cli.flags.sampling_flags import sampling_flags
from quire.core.errors import ConfigError
from quire.system.regular_files import read_regular_text

if TYPE_CHECKING:
    from quire.store.preset_file import PresetFile

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("name")
@click.option("--from", "base", metavar="MODEL", help="model to start from, in place of a file")
@click.option("--system", help="system prompt, where a conversation has none")
@click.option("--template", metavar="FILE", type=_FILE, help="chat template, in Jinja")
@click.option("--file", "-f", "file", metavar="FILE", type=_FILE, help="TOML or Modelfile")
@sampling_flags
def create(
    name: str,
    base: str | None,
    system: str | None,
    template: Path | None,
    file: Path | None,
    sampling: dict[str, Any],
) -> None:
    """Make NAME from another model with settings of its own, given by flags or in FILE:

    \b
      base = "qwen3:0.6b"                  # any model
      system = "Answer in one sentence."   # where a conversation has no system message
      template = "chat.jinja"              # a file next to this one
      [sampling]                           # defaults of requests
      temperature = 0.2
      [[messages]]                         # these begin each conversation
      role = "user"
      content = "Hi"

    FILE may be a Modelfile of Ollama, too. NAME is then a model for run, serve, chat, generate and
    LLM(). Its weights are the base's. All but base may be left out; of a base that was made so,
    they win over its own.
    """
    flags = (base, system, template, sampling or None)
    if (file is None) == (base is None) or (file is not None and any(f is not None for f in flags)):
        raise click.UsageError(
            "[create] either --from MODEL, with other flags, or --file FILE alone must be given."
        )
    from quire.store.store import Store

    made = _read(file) if file is not None else _from_flags(base or "", system, template, sampling)
    if made.preset.template is not None:
        from quire.text.templates.chat_template import check_template

        check_template(made.preset.template)
    Store().create(name, made.base, made.preset, made.revision)
    for note in made.notes:
        click.echo(note, err=True)
    whose = "of its own" if file is None else f"of {file}"
    click.echo(f"{name} is {made.base} with settings {whose}")


def _read(file: Path) -> PresetFile:
    from quire.store.modelfile import is_modelfile, read_modelfile
    from quire.store.preset_file import read_preset_file

    try:
        text = read_regular_text(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"[create] {file} must be a readable text; got {error}.") from error
    return read_modelfile(text, file) if is_modelfile(text) else read_preset_file(file)


def _from_flags(
    base: str, system: str | None, template: Path | None, sampling: dict[str, Any]
) -> PresetFile:
    from quire.store.manifests import Preset, check_sampling
    from quire.store.preset_file import PresetFile

    try:
        source = None if template is None else read_regular_text(template)
    except (OSError, ValueError) as error:
        raise ConfigError(f"[create] --template must be a file; got {error}.") from error
    stops = {"stop": list(sampling["stop"])} if "stop" in sampling else {}
    settings = check_sampling({**sampling, **stops}, "the flags")
    return PresetFile(base, None, Preset(system, source, settings))
