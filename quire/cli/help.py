"""``quire help``: the same text as ``--help``, for those who ask that way."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("command", required=False)
@click.pass_context
def help_(ctx: click.Context, command: str | None) -> None:
    """Show the help of COMMAND, or list all commands."""
    parent = ctx.parent
    assert parent is not None
    group = parent.command
    assert isinstance(group, click.Group)
    if command is None:
        click.echo(parent.get_help())
        return
    name, found, _ = group.resolve_command(parent, [command])
    assert found is not None
    with click.Context(found, info_name=name, parent=parent) as inner:
        click.echo(found.get_help(inner))
