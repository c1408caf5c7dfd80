"""Flags that other engines have and scripts pass: taken, with a word on why they do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from quire.core.errors import ConfigError
from quire.settings.known_settings import KnownSetting, flag_name


def known_options(
    known: Mapping[str, KnownSetting], *, taken: Sequence[click.Parameter]
) -> list[click.Option]:
    """Return hidden options; each says once, on stderr, that it does nothing.

    Args:
        known: The settings by name.
        taken: Parameters of the command; a setting that one of them has is left out.
    """
    has = {name for param in taken for name in (*param.opts, *param.secondary_opts)}
    return [_option(name, setting) for name, setting in known.items() if flag_name(name) not in has]


def _option(name: str, setting: KnownSetting) -> click.Option:
    flag = flag_name(name)

    def say(ctx: click.Context, param: click.Parameter, given: Any) -> None:
        for value in given if setting.is_list else (given,):
            shown = flag if value is True else f"{flag} {value}"
            try:
                notice = setting.notice(flag, shown, value)
            except ConfigError as error:
                raise click.UsageError(str(error), ctx) from error
            if notice is not None and not ctx.resilient_parsing:
                click.echo(f"quire: {notice}", err=True)

    extra: dict[str, Any] = {"type": str, "multiple": setting.is_list}
    if setting.is_switch:
        flag_forms = f"{flag}/--no-{flag.removeprefix('--')}"
        extra = {"is_flag": True, "default": False}
    return click.Option(
        [name, flag_forms if setting.is_switch else flag, *setting.short],
        expose_value=False,
        hidden=True,
        callback=say,
        **extra,
    )
