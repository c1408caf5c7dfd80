"""Sampling flags of generate and chat; a flag that is not given leaves the model's default."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from quire.core.errors import InvalidSamplingParamsError
from quire.core.sampling_params import SamplingParams

FLAGS: dict[str, tuple[click.ParamType[Any], str]] = {
    "max_tokens": (
        click.INT,
        "most tokens of an answer",
    ),
    "temperature": (click.FLOAT, "0 always takes the most likely token"),
    "top_p": (click.FLOAT, "draw from the most likely tokens of this total probability"),
    "top_k": (click.INT, "draw from this many of the most likely tokens; 0: all"),
    "min_p": (click.FLOAT, "least probability, relative to the most likely token"),
    "repetition_penalty": (click.FLOAT, "above 1, tokens that occurred get less likely"),
    "stop": (click.STRING, "text that ends the answer; may be repeated"),
}


def sampling_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the sampling flags; it receives those that were given, as ``sampling``.

    A value out of range is misuse (exit code 2).
    """

    @functools.wraps(function)
    def command(**keywords: Any) -> Any:
        given = {name: keywords.pop(name) for name in FLAGS}
        sampling = {name: value for name, value in given.items() if value not in (None, ())}
        try:
            SamplingParams(**{"max_tokens": None, **sampling})
        except InvalidSamplingParamsError as error:
            raise click.UsageError(str(error)) from error
        return function(sampling=sampling, **keywords)

    for name, (kind, text) in reversed(FLAGS.items()):
        flag = f"--{name.replace('_', '-')}"
        metavar = "TEXT" if kind is click.STRING else "N"
        option = click.option(
            name, flag, type=kind, help=text, metavar=metavar, multiple=name == "stop"
        )
        option(command)
    return command
