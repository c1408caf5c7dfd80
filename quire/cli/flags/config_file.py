"""``--config FILE``: a command's flags from a YAML file; flags on the command line win."""

from __future__ import annotations

import json
from typing import Any

import click

from quire.core.suggestions import did_you_mean
from quire.system.regular_files import read_given_text

#: Of a file of flags, aliases counted as what they stand for.
MAX_VALUES = 100_000


def read_config_file(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Make the file's entries the command's defaults; an option's eager callback.

    Keys are flag names with dashes or underscores, ``max-model-len: 4k``. What a flag takes as
    JSON may be written as YAML, too.

    Raises:
        click.BadParameter: The file is not YAML, holds no mapping, or a key of it is not a flag of
            this command.
    """
    if path is None:
        return
    import yaml

    try:
        entries: Any = yaml.safe_load(read_given_text(path)) or {}
        _check_size(entries)
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise click.BadParameter(f"{path} must be YAML; {reason}", ctx, param) from error
    if not isinstance(entries, dict):
        raise click.BadParameter(f"{path} must hold flag: value lines.", ctx, param)
    options = [option for option in ctx.command.params if isinstance(option, click.Option)]
    names = {
        spelling.lstrip("-").replace("-", "_"): option.name
        for option in options
        for spelling in option.opts
    }
    keys = {key: str(key).replace("-", "_") for key in entries}
    repeatable = {option.name for option in options if option.multiple}
    given: dict[Any, Any] = {}
    for key, value in entries.items():
        name = names.get(keys[key], keys[key])
        many = name in repeatable and isinstance(value, list)
        given[name] = list(map(_as_text, value)) if many else _as_text(value)
    known = {option.name for option in options}
    unknown = sorted(set(given) - (known - {param.name}))
    if unknown:
        meant = did_you_mean(unknown[0], [name for name in known if name])
        raise click.BadParameter(
            f"{path} names unknown flags: {', '.join(unknown)}.{meant}", ctx, param
        )
    ctx.default_map = {**(ctx.default_map or {}), **given}


def _check_size(value: Any) -> None:
    """Refuse aliases in aliases: a few lines of them are millions of values when they are read."""
    rest, count = [value], 0
    while rest:
        value, count = rest.pop(), count + 1
        if count > MAX_VALUES:
            raise ValueError(f"its aliases make more than {MAX_VALUES:,} values")
        rest += (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )


def _as_text(value: Any) -> Any:
    """Return the JSON text of a mapping, or of a list of mappings; anything else as it is."""
    items = value if isinstance(value, list) and value else [value]
    if all(isinstance(item, dict) for item in items):
        return json.dumps(value, default=str)  # a date, which YAML has and JSON does not
    return value


def config_file_option() -> click.Option:
    """Return the option ``--config`` for a command."""
    return click.Option(
        ["--config"],
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=read_config_file,
        help="YAML of flags (max-model-len: 4k); the command line wins",
    )
