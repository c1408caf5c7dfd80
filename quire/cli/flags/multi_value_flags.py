"""``--flag a b``: words after a repeatable flag as further values of it, as in vLLM's commands."""

from __future__ import annotations

from collections.abc import Sequence

import click


def repeat_flags(params: Sequence[click.Parameter], words: Sequence[str]) -> list[str]:
    """Write a repeatable flag before each of the words that follow its value.

    A command's own argument is looked for first: ``--served-model-name a MODEL`` keeps its meaning,
    and of ``MODEL --served-model-name a b`` both words are names.
    """
    options = {
        name: param
        for param in params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }
    has_argument = not any(isinstance(param, click.Argument) for param in params)
    spelled: list[str] = []
    flag: str | None = None  # the repeatable one whose values go on
    awaits_value = False
    for word in words:
        if awaits_value:
            awaits_value = False
        elif word.startswith("-") and word != "-":
            name, equals, _ = word.partition("=")
            option = options.get(name)
            has_argument |= option is not None and option.name == "model"
            awaits_value = option is not None and not option.is_flag and not equals
            flag = name if option is not None and option.multiple else None
        elif flag is not None and has_argument:
            spelled.append(flag)
        else:
            has_argument, flag = True, None
        spelled.append(word)
    return spelled
