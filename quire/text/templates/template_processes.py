"""Chat templates compiled and rendered within limits, in processes that a whole program shares."""

from __future__ import annotations

import atexit
import marshal
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from quire.core.errors import CapacityError
from quire.system.sandboxes import Sandbox, SandboxDied, Sandboxes

_TARGET = "quire.text.templates.template_sandbox:render_in_sandbox"
#: Wall-clock time to compile a template and render it once.
RENDER_SECONDS = 5.0
#: Then it gives way to the engine; a long conversation takes less.
PATIENCE_SECONDS = 0.25
#: The first byte of an answer: a result, what the template says, or the limit it is over.
RESULT, SAID, OVER_LIMIT = b"+", b"-", b"!"


class TemplateFailure(Exception):
    """A template cannot be used; the text follows "the template": ``says: ...``, ``takes ...``.

    Attributes:
        is_over_limits: Whether it takes too much, whatever it is given.
    """

    def __init__(self, text: str, *, is_over_limits: bool) -> None:
        super().__init__(text)
        self.is_over_limits = is_over_limits


class _Processes:
    """The template processes of this process, started when templates are first used."""

    def __init__(self) -> None:
        # A process lives as long as the thread that started it, and any thread renders.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="quire-templates")
        self._sandboxes = Sandboxes(lambda: self._starter.submit(_start).result())

    def ask(self, source: str, variables: Mapping[str, Any] | None) -> str:
        """See :mod:`quire.text.templates.template_sandbox`."""
        asked: Any = (source, variables)
        message = marshal.dumps(asked)
        try:
            answer = self._sandboxes.ask(message, RENDER_SECONDS)
        except SandboxDied as death:
            if not death.is_over_limits:
                raise CapacityError(
                    f"[chat] the process that renders templates has died twice ({death}). "
                    "Try again.",
                    1.0,
                ) from death
            raise TemplateFailure(
                "takes more memory or deeper nesting than a template may have",
                is_over_limits=True,
            ) from death
        except (OSError, EOFError, RuntimeError) as error:
            raise CapacityError(f"[chat] no process to render templates: {error}.", 1.0) from error
        if answer is None:
            raise TemplateFailure(f"takes longer than {RENDER_SECONDS:g} s", is_over_limits=True)
        kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
        if kind != RESULT:
            said = kind == SAID
            raise TemplateFailure(f"says: {text}" if said else text, is_over_limits=not said)
        return text

    def close(self) -> None:
        """End the processes."""
        self._sandboxes.close()
        self._starter.shutdown(wait=False, cancel_futures=True)


def _start() -> Sandbox:
    return Sandbox(_TARGET, marshal.dumps(RENDER_SECONDS), PATIENCE_SECONDS)


_processes = _Processes()
#: Of the process that this one is a fork of: they answer that one.
_inherited: list[_Processes] = []


def _begin_anew() -> None:
    global _processes
    _inherited.append(_processes)
    _processes = _Processes()


def end_processes() -> None:
    """End the processes, as this program's end does; later templates start others."""
    global _processes
    ended, _processes = _processes, _Processes()
    ended.close()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(end_processes)


def render(source: str, variables: Mapping[str, Any]) -> str:
    """Return what a template makes of variables, which are JSON values.

    Raises:
        TemplateFailure: The source is not a template, or the template refuses the variables or
            takes too much.
        CapacityError: No process is free to render the template.
    """
    return _processes.ask(source, variables)


def variables_of(source: str) -> frozenset[str]:
    """Return the names of the variables that a template reads; they are kept for later calls.

    Raises:
        TemplateFailure, CapacityError: The same as in :func:`render`.
    """
    found = _variables_or_failure(source)
    if isinstance(found, TemplateFailure):
        raise TemplateFailure(str(found), is_over_limits=found.is_over_limits)
    return found


@lru_cache(256)
def _variables_or_failure(source: str) -> frozenset[str] | TemplateFailure:
    try:
        return frozenset(_processes.ask(source, None).split())
    except TemplateFailure as failure:  # it would take as long again
        return TemplateFailure(str(failure), is_over_limits=failure.is_over_limits)
