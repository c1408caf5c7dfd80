"""``quire create``: a name for a model with a system prompt, a template and defaults of its own."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option(
    "--file", "-f", "file", required=True, metavar="FILE",
    type=click.Path(path_type=Path), help="TOML; see above.",
)  # fmt: skip
def create(name: str, file: Path) -> None:
    """Make NAME from another model with settings of its own, which FILE says:

    \b
      base = "qwen3:0.6b"                  # any model
      system = "Answer in one sentence."   # where a conversation has no system message
      template = "chat.jinja"              # a file next to this one
      [sampling]                           # defaults of requests
      temperature = 0.2
      [[messages]]                         # these begin each conversation
      role = "user"
      content = "Hi"

    NAME is then a model for serve, chat, generate and LLM(). Its weights are the base's. All but
    base may be left out; of a base that was made so, they win over its own.
    """
    from quire.models.preset_file import read_preset_file
    from quire.models.store import Store

    made = read_preset_file(file)
    if made.preset.template is not None:
        from quire.text.chat_template import check_template

        check_template(made.preset.template)
    Store().create(name, made.base, made.preset, made.revision)
    click.echo(f"{name} is {made.base} with the settings of {file}")
