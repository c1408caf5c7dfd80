"""Engine flags, made of :mod:`quire.settings.flags`; several commands have them.

A command uses them so::

    @click.command(cls=EngineCommand)
    @engine_flags
    @click.option("--port", default=8000)
    def serve(config: EngineConfig, port: int) -> None: ...
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from quire.cli.flags.config_file import config_file_option
from quire.cli.flags.grouped_help import GroupedHelp
from quire.cli.flags.known_flags import known_options
from quire.cli.flags.multi_value_flags import repeat_flags
from quire.core.counts import parse_count
from quire.core.errors import ConfigError
from quire.settings.engine_keywords import read_keywords
from quire.settings.flags import Flag, setting_flags
from quire.settings.known_settings import KnownSetting, engine_settings
from quire.settings.other_programs import instead_of, same_flags


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
    """A flag that stands for a setting; its names in other programs are taken and not shown.

    Args:
        flag: The setting's flag.
    """

    def __init__(self, *args: Any, flag: Flag, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.group, self.is_common = flag.group, flag.told.get("common", False)
        long = [name for name in self.opts if name.startswith("--")]
        self._shown = [name for name in self.opts if name not in long[1:]]
        if self.group is not None:
            self.opts = [*self.opts, *same_flags().get(flag.name, ())]

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


def _with_hyphens(argument: str, known: set[str]) -> str:
    """Return ``--max-model-len`` for ``--max_model_len``, which vLLM takes, too."""
    flag, equals, value = argument.partition("=")
    meant = flag.replace("_", "-")
    return meant + equals + value if flag not in known and meant in known else argument


class EngineCommand(GroupedHelp):
    """A command that takes ``--config`` and has an engine's flags.

    Flags of other engines that have nothing to do are taken and not shown.

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


def config_option(flag: Flag) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the click decorator of one setting's flag."""
    long, *aliases = flag.names
    extra: dict[str, Any] = {"type": flag.kind, "multiple": flag.is_list}
    extra["metavar"] = flag.told.get("metavar", "TEXT" if flag.kind is str else "N")
    if flag.kind is bool:
        long, extra = f"{long}/--no-{long.removeprefix('--')}", {}
    elif flag.kind is int:
        extra["type"] = CountType(flag.is_optional)
    elif flag.choices:
        extra |= {"type": click.Choice(flag.values), "metavar": "NAME"}
    return click.option(
        flag.name, long, *aliases, cls=ConfigOption, flag=flag, default=flag.default,
        help=flag.help, **extra,
    )  # fmt: skip


def engine_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument MODEL and all engine flags; it receives them as ``config``.

    A setting that cannot be is misuse (exit code 2) and names its flag.
    """
    return _with_flags(function, setting_flags())


def some_engine_flags(
    names: Collection[str],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command MODEL and those engine flags that mean something to it, as ``config``."""
    settings = {name: flag for name, flag in setting_flags().items() if name in names}
    assert len(settings) == len(names), set(names) - set(settings)
    return lambda function: _with_flags(function, settings)


def _with_flags(function: Callable[..., Any], settings: Mapping[str, Flag]) -> Callable[..., Any]:
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

    for flag in reversed([*settings.values()]):
        config_option(flag)(command)
    click.argument("model_argument", metavar="[MODEL]", required=False)(command)
    return command
