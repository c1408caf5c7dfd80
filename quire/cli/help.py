"""``quire help``: the same text as ``--help``, for those who ask that way."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("command", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or list all commands."""
    assert ctx.parent is not None
    found, rest = ctx.parent, list(command)
    while rest and isinstance(found.command, click.Group):
        name, inner, rest = found.command.resolve_command(found, rest)
        assert inner is not None
        found = click.Context(inner, info_name=name, parent=found)
    click.echo(found.get_help())
