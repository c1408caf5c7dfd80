"""Flags that other servers have and scripts pass: accepted, with a word on why they do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_ALWAYS = "is how it is always done here"
_ONE_PROCESS = "is not available: one process computes each model"
_NO_SPECULATION = "is not available: tokens are not drafted (the answers are the same)"
_NO_ADAPTERS = "is not available: adapters are not served"

#: Switches, and why each changes nothing.
SWITCHES = {
    "--enforce-eager": "changes nothing: there are no graphs to capture",
    "--use-v2-block-manager": "changes nothing: there is one block manager",
    "--trust-remote-code": "changes nothing: code of a checkpoint is never run",
    "--disable-log-stats": "changes nothing: statistics are at /metrics, not in the log",
    "--enable-log-requests": _ALWAYS,
    "--enable-request-id-headers": _ALWAYS,
    "--enable-prompt-tokens-details": _ALWAYS,
    "--enable-server-load-tracking": _ALWAYS,
    "--async-scheduling": "is not available",
    "--enable-lora": _NO_ADAPTERS,
}
#: Settings with a value, the values that ask for nothing, and why others change nothing.
SETTINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "--tensor-parallel-size": (("1",), _ONE_PROCESS),
    "--pipeline-parallel-size": (("1",), _ONE_PROCESS),
    "--data-parallel-size": (("1",), _ONE_PROCESS),
    "--distributed-executor-backend": (("uni", "mp"), _ONE_PROCESS),
    "--swap-space": (("0",), "changes nothing: preempted requests are computed again"),
    "--cpu-offload-gb": (("0",), "changes nothing: weights are in the machine's memory"),
    "--load-format": (("auto",), "changes nothing: the files say what they are"),
    "--tokenizer-mode": (("auto",), "changes nothing: the files say what they are"),
    "--lora-modules": ((), _NO_ADAPTERS),
    "--max-loras": ((), _NO_ADAPTERS),
    "--max-lora-rank": ((), _NO_ADAPTERS),
    "--limit-mm-per-prompt": ((), "is not available: models take text only"),
    "--speculative-model": ((), _NO_SPECULATION),
    "--num-speculative-tokens": ((), _NO_SPECULATION),
    "--speculative-max-model-len": ((), _NO_SPECULATION),
}
SHORT_NAMES = {
    "--tensor-parallel-size": "-tp",
    "--pipeline-parallel-size": "-pp",
    "--data-parallel-size": "-dp",
}


def known_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have a command take these flags; each says once, on stderr, that it does nothing."""
    for flag, why in SWITCHES.items():
        names = (flag, f"--no-{flag.removeprefix('--')}")
        _option("/".join(names), why, (), is_flag=True, default=False)(function)
    for flag, (neutral, why) in SETTINGS.items():
        short = [SHORT_NAMES[flag]] if flag in SHORT_NAMES else []
        _option(flag, why, neutral, *short, type=str)(function)
    return function


def _option(
    flag: str, why: str, neutral: tuple[str, ...], *short: str, **keywords: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def warn(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value not in (None, False, *neutral) and not ctx.resilient_parsing:
            shown = param.opts[0] if value is True else f"{param.opts[0]} {value}"
            click.echo(f"quire: {shown} {why}.", err=True)

    return click.option(flag, *short, expose_value=False, hidden=True, callback=warn, **keywords)
