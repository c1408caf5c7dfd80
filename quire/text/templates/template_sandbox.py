"""A process that compiles and renders chat templates; its parent ends it when that does not end.

Templates are programs that come with models, and Jinja computes their constants while it compiles:
sixty bytes may ask for gigabytes or hours. Here they take no one else with them.
"""

from __future__ import annotations

import errno
import json
import marshal
import os
import socket
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from multiprocessing.connection import Connection
from types import CodeType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.system.sandboxes import limit_computing, limit_memory
from quire.text.templates.template_processes import OVER_LIMIT, RESULT, SAID

#: What a process may take besides what it has when it is ready.
MEMORY_BYTES = 2**29
#: Tokens of running requests come first.
NICENESS = 5
#: Compiled templates that it keeps; one is used by all conversations with a model.
MAX_KEPT = 64
#: Characters of a template as Python: a long one has constants that were computed.
MAX_CODE = 2**22
#: Characters of a prompt: at least, and for each byte of what it is made of.
MAX_PROMPT, MAX_PROMPT_PER_BYTE = 2**20, 16
#: Characters that are told of an error.
MAX_REASON = 10_000


class _OverLimit(Exception):
    """A limit that a template is over; the text follows "the template"."""


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's tokens for training; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The language of chat templates."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _compile(self, source: str, filename: str) -> CodeType:
        if len(source) > MAX_CODE:
            raise _OverLimit(f"has constants of more than {MAX_CODE} characters")
        return super()._compile(source, filename)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Templates:
    """Compiled templates by their sources, the last used ones."""

    def __init__(self) -> None:
        self._environment = _Environment()
        self._kept: OrderedDict[str, Template] = OrderedDict()

    def compile(self, source: str) -> Template:
        """Return a template.

        Raises:
            TemplateError: The source is not a template.
        """
        found = self._kept.get(source)
        if found is None:
            found = self._kept[source] = self._environment.from_string(source)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(source)
        return found

    def render(self, source: str, variables: Mapping[str, Any], most: int) -> str:
        """Return a prompt of at most ``most`` characters."""
        parts, length = [], 0
        for part in self.compile(source).generate(variables):
            length += len(part)
            if length > most:
                raise _OverLimit(f"writes more than {most} characters")
            parts.append(part)
        return "".join(parts)

    def variables(self, source: str) -> set[str]:
        """Return the names that a template takes from a conversation."""
        return meta.find_undeclared_variables(self._environment.parse(source))


def render_in_sandbox(connection: socket.socket) -> None:
    """Answer each template that arrives with what becomes of it, until the socket closes.

    The first message is how long one may take, in seconds; each other one a template's source and
    the variables to render it with, or None to compile it and name those that it reads.
    """
    os.nice(NICENESS)
    link = Connection(connection.detach())
    with suppress(EOFError, OSError):
        seconds = marshal.loads(link.recv_bytes())
        templates = _Templates()
        limit_memory(MEMORY_BYTES)
        link.send_bytes(b"")
        while True:
            message = link.recv_bytes()
            limit_computing(seconds)
            link.send_bytes(_answer(templates, message))


def _answer(templates: _Templates, message: bytes) -> bytes:
    try:
        source, variables = marshal.loads(message)
        if variables is None:
            templates.compile(source)
            found = "\n".join(templates.variables(source))
        else:
            most = MAX_PROMPT + MAX_PROMPT_PER_BYTE * len(message)
            found = templates.render(source, variables, most)
        return RESULT + found.encode("utf-8", "surrogatepass")
    except MemoryError:
        # Or there is none left after others: a new process tries it again before it is refused.
        os._exit(errno.ENOMEM)
    except _OverLimit as limit:
        return OVER_LIMIT + str(limit).encode()
    except Exception as error:  # the template is a foreign program
        return SAID + str(error)[:MAX_REASON].encode("utf-8", "surrogatepass")
