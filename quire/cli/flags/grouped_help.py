"""Help of a command with many flags: the common ones by group, a whole group, or those of a word.

Flags of the command itself, which stand for no setting, come first and belong to no group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from quire.core.plurals import counted
from quire.settings.option import GROUPS
from quire.system.env import VARIABLES

#: What the help is asked for, in a context: a group, a word, or :data:`ALL`.
_TOPIC = "quire.help_topic"
ALL = "all"
#: What stands for the flags of the command itself.
_OWN = "options"
_LONG_NO = re.compile(r"--([a-z-]+) / --no-\1")
#: Columns of names; the text of a longer one begins on the next line.
_WIDEST = 32


class GroupedHelp(click.Command):
    """A command whose ``--help`` lists flags by group.

    ``--help`` shows the common flags, ``--help=GROUP`` those of a group, ``--help=WORD`` those with
    the word in a name or in their text, ``--help-all`` all.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        show_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=lambda ctx, param, value: self._show(ctx, ALL) if value else None,
            help="show every flag and exit",
        )
        self.params.append(show_all)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the option ``--help``, with a text on its topics."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "show this; --help=GROUP: a whole group; --help=WORD: flags with the word"
        return option

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; with ``--help=TOPIC`` among them, print the help on it and end."""
        for argument in args[: args.index("--") if "--" in args else None]:
            if argument.startswith("--help="):
                self._show(ctx, argument.removeprefix("--help="))
        return super().parse_args(ctx, args)

    def help_on(self, ctx: click.Context, topic: str) -> str:
        """Return the help on a group, a word or :data:`ALL`.

        Raises:
            click.UsageError: The topic is no group, and no word of a flag.
        """
        ctx.meta[_TOPIC] = topic
        if not any(rows for _, rows in self._sections(ctx)):
            groups = ", ".join(self._groups(ctx))
            rule = f"must be a group ({groups}) or a word of a flag's name or text"
            raise click.UsageError(f"--help= {rule}; got {topic!r}.", ctx)
        return ctx.get_help()

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command does; a part of its flags goes without."""
        if ctx.meta.get(_TOPIC, ALL) == ALL:
            super().format_help_text(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags that the help is asked for, in columns of one width."""
        sections = list(self._sections(ctx))
        names = [name for _, rows in sections for name, _ in rows]
        width = min(_WIDEST, max(map(len, names)))
        is_short = _TOPIC not in ctx.meta
        for index, (title, rows) in enumerate(sections):
            if index < 2 or not is_short:  # groups of the short help stand close together
                formatter.write_paragraph()
            formatter.write_heading(title)
            if rows:
                with formatter.indentation():
                    formatter.write_dl([(name.ljust(width), text) for name, text in rows], width)
        if ctx.meta.get(_TOPIC) == ALL:
            with formatter.section("Environment"):
                formatter.write_dl([*VARIABLES.items()])

    def _show(self, ctx: click.Context, topic: str) -> None:
        if not ctx.resilient_parsing:
            click.echo(self.help_on(ctx, topic))
            ctx.exit()

    def _groups(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """Return the options by group, the command's own first."""
        found: dict[str, list[click.Option]] = {group: [] for group in (_OWN, *GROUPS)}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and param.get_help_record(ctx) is not None:
                found[getattr(param, "group", None) or _OWN].append(param)
        return {group: params for group, params in found.items() if params}

    def _sections(self, ctx: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield titles with the rows that the help is asked for."""
        topic, groups = ctx.meta.get(_TOPIC), self._groups(ctx)
        for group in [topic] if topic in groups else groups:
            params = groups[group]
            title = "Options" if group == _OWN else GROUPS[group]
            if topic is None and group != _OWN:
                title += f" ({counted(len(params), 'flag')}: --help={group})"
                params = [param for param in params if getattr(param, "is_common", False)]
            elif topic is not None and topic not in (ALL, group):
                params = [param for param in params if _has_word(param, topic)]
            if params or topic is None:
                yield title, [_row(param, ctx) for param in params]


def _row(param: click.Option, ctx: click.Context) -> tuple[str, str]:
    name, text = param.get_help_record(ctx) or ("", "")
    return _LONG_NO.sub(r"--[no-]\1", name), text


def _has_word(param: click.Option, word: str) -> bool:
    """Return whether a name of the flag, in other programs, too, or its text has the word."""
    names: Sequence[str] = (*param.opts, *param.secondary_opts)
    wanted, *texts = (
        text.lower().replace("-", " ").replace("_", " ").strip()
        for text in (word, *names, param.help or "")
    )
    return bool(wanted) and any(wanted in text for text in texts)
