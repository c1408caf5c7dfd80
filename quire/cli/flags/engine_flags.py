"""Engine flags, made from the fields of :mod:`quire.settings.config`; several commands have them.

A command uses them so::

    @click.command(cls=EngineCommand)
    @engine_flags
    @click.option("--port", default=8000)
    def serve(config: EngineConfig, port: int) -> None: ...
"""

from __future__ import annotations

import functools
import re
import shlex
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from quire.cli.flags.config_file import config_file_option
from quire.cli.flags.known_flags import known_options
from quire.cli.flags.multi_value_flags import repeat_flags
from quire.core.counts import parse_count
from quire.core.errors import ConfigError
from quire.settings.config import PARTS, EngineConfig
from quire.settings.engine_keywords import read_keywords
from quire.settings.known_settings import KnownSetting, engine_settings
from quire.settings.other_programs import instead_of, same_flags

HELP_ALL = "quire.help_all"
_LONG_NO = re.compile(r"--([a-z-]+) / --no-\1")


class CountType(click.ParamType[int | None]):
    """A whole number with a unit.

    Args:
        optional: ``auto`` is None, for a setting without a fixed default.
        minimum: Lesser numbers are refused here; None leaves that to the setting's owner.
    """

    name = "N"

    def __init__(self, optional: bool, minimum: int | None = None) -> None:
        self.optional = optional
        self.minimum = minimum

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if isinstance(value, int):
            return value
        if self.optional and value in ("auto", "-1"):
            return None
        try:
            count = parse_count(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number such as 4096, 4k or 8GiB.", param, ctx)
        if self.minimum is not None and count < self.minimum:
            self.fail(f"{value} is less than {self.minimum}.", param, ctx)
        return count


class ConfigOption(click.Option):
    """A flag that stands for a config field.

    Args:
        common: Whether the short help shows it.
        same: Names that the flag has in other programs; taken, not shown.
    """

    def __init__(self, *args: Any, common: bool, same: Sequence[str] = (), **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.common = common
        self._shown = self.opts
        self.opts = [*self.opts, *same]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the line in the help, with our own names alone."""
        with self._own_names():
            return super().get_help_record(ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return how errors call the flag, with our own names alone."""
        with self._own_names():
            return super().get_error_hint(ctx)

    @contextmanager
    def _own_names(self) -> Iterator[None]:
        taken, self.opts = self.opts, self._shown
        try:
            yield
        finally:
            self.opts = taken


class EngineOption(ConfigOption):
    """One of the engine's, which have a section of their own."""


def _with_hyphens(argument: str, known: set[str]) -> str:
    """Return ``--max-model-len`` for ``--max_model_len``, which vLLM takes, too."""
    flag, equals, value = argument.partition("=")
    meant = flag.replace("_", "-")
    return meant + equals + value if flag not in known and meant in known else argument


class EngineCommand(click.Command):
    """A command that takes ``--config``; its help lists the engine's options last.

    ``--help`` shows the common flags, ``--help-all`` all. Flags of other engines that have
    nothing to do are taken and not shown.

    Args:
        known: Such flags of this command, besides those for an engine's settings.
        text_goes: Advice on where a text after MODEL belongs, with ``{model}`` and ``{text}``.
    """

    def __init__(
        self,
        *args: Any,
        known: Mapping[str, KnownSetting] | None = None,
        text_goes: str | None = None,
        **keywords: Any,
    ) -> None:
        self._text_goes = text_goes
        super().__init__(*args, **keywords)
        self.params += known_options({**engine_settings(), **(known or {})}, taken=self.params)
        self.params.append(config_file_option())
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._show_all,
                help="show every flag and exit",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        args = [_with_hyphens(argument, ours) for argument in args]
        for argument in args:
            flag = argument.partition("=")[0]
            instead = None if flag in ours else instead_of("flags", "engine").get(flag)
            if instead is not None:
                raise click.NoSuchOption(flag, f"No such option {flag!r}. {instead}", ctx=ctx)
        ctx.allow_extra_args = self._text_goes is not None
        rest = super().parse_args(ctx, repeat_flags(self.params, args))
        if rest and self._text_goes is not None and not ctx.resilient_parsing:
            words = {"model": ctx.params["model_argument"], "text": " ".join(rest)}
            shown = {name: shlex.quote(word) for name, word in words.items()}
            raise click.UsageError(
                f"Got unexpected extra argument {rest[0]!r}. {self._text_goes.format(**shown)}", ctx
            )
        return rest

    def _show_all(self, ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[HELP_ALL] = True
            click.echo(ctx.get_help())
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Engine": []}
        cut = set()
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or not isinstance(param, click.Option):
                continue
            section = "Engine" if isinstance(param, EngineOption) else "Options"
            if isinstance(param, ConfigOption) and not param.common and HELP_ALL not in ctx.meta:
                cut.add(section)
            else:
                row = (_LONG_NO.sub(r"--[no-]\1", record[0]), record[1])
                sections[section].append(row)
        for title, rows in sections.items():
            if rows:
                with formatter.section(f"{title} (all: --help-all)" if title in cut else title):
                    formatter.write_dl(rows, col_max=38)


def config_fields() -> dict[str, tuple[Field[Any], Any]]:
    """Return every setting by name, with its type, but not the parts that settings are in."""
    found: dict[str, tuple[Field[Any], Any]] = {}
    for owner in (*PARTS.values(), EngineConfig):
        hints = get_type_hints(owner)
        for field in fields(owner):
            if "help" in field.metadata:
                found[field.name] = (field, hints[field.name])
    return found


def config_option(
    field: Field[Any], hint: Any, kind: type[click.Option]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the click decorator of one config field, its type hint resolved."""
    optional = get_origin(hint) in (Union, types.UnionType)
    if optional:
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    flag = field.name.replace("_", "-")
    text = field.metadata["help"]
    extra: dict[str, Any] = {}
    if get_origin(hint) is tuple:
        names = f"--{flag}"
        text += "; repeatable"
        extra = {"type": str, "metavar": "TEXT", "multiple": True}
    elif hint is bool:
        names = f"--{flag}/--no-{flag}"
    elif get_origin(hint) is Literal:
        names = f"--{flag}"
        text += f" ({', '.join(get_args(hint))})"
        told = field.metadata
        choices = (*get_args(hint), *told.get("spellings", ()), *told.get("unavailable", ()))
        extra = {"type": click.Choice(choices), "metavar": "NAME"}
    else:
        names = f"--{flag}"
        extra = {"type": CountType(optional) if hint is int else hint}
        extra["metavar"] = "TEXT" if hint is str else "N"
    if issubclass(kind, ConfigOption):
        extra["common"] = field.metadata.get("common", False)
        extra["same"] = same_flags().get(field.name, ())
    if field.default not in (None, ()):
        shown = ("on" if field.default else "off") if hint is bool else field.default
        text += f" [{shown}]"
    aliases = [
        alias if alias.startswith("-") else f"--{alias}"
        for alias in field.metadata.get("aliases", ())
    ]
    return click.option(
        field.name, names, *aliases, cls=kind, default=field.default, help=text, **extra
    )


def engine_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument MODEL and all engine flags; it receives them as ``config``.

    A setting that cannot be is misuse (exit code 2) and names its flag.
    """
    return _with_flags(function, config_fields())


def some_engine_flags(
    names: Collection[str],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command MODEL and those engine flags that mean something to it, as ``config``."""
    settings = {name: setting for name, setting in config_fields().items() if name in names}
    assert len(settings) == len(names), set(names) - set(settings)
    return lambda function: _with_flags(function, settings)


def _with_flags(
    function: Callable[..., Any], settings: Mapping[str, tuple[Field[Any], Any]]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(model_argument: str | None, **keywords: Any) -> Any:
        settings_given = {name: keywords.pop(name) for name in settings}
        if model_argument is not None:
            source = click.get_current_context().get_parameter_source("model")
            if source not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
                raise click.UsageError("MODEL and --model are the same setting; give one.")
            settings_given["model"] = model_argument
        try:
            config, notices = read_keywords(settings_given, as_flags=True)
        except ConfigError as error:
            raise click.UsageError(str(error)) from error
        for notice in notices:
            click.echo(f"quire: {notice}", err=True)
        return function(config=config, **keywords)

    for field, hint in reversed(list(settings.values())):
        config_option(field, hint, EngineOption)(command)
    click.argument("model_argument", metavar="[MODEL]", required=False)(command)
    return command
