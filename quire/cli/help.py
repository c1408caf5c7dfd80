"""``quire help``: the same text as ``--help``, for those who ask that way."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("command", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or list all commands.

    After serve, generate, chat or eval comes a group of flags or a word: quire help serve memory.
    """
    from quire.cli.flags.grouped_help import GroupedHelp

    assert ctx.parent is not None
    found, rest = ctx.parent, list(command)
    while rest and isinstance(found.command, click.Group):
        name, inner, rest = found.command.resolve_command(found, rest)
        assert inner is not None
        found = click.Context(inner, info_name=name, parent=found)
    if rest and isinstance(found.command, GroupedHelp):
        click.echo(found.command.help_on(found, " ".join(rest)))
    else:
        click.echo(found.get_help())
