"""Functions of the routes whose conversations have another shape than chats."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from quire.protocol.openai.chat_completion import Message

#: Between texts that become one.
SEPARATOR = "\n"
#: Stands in a tool's result for what is not text.
OMITTED = "[{kind} omitted: this model reads text only]"


def with_systems_joined(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages; those of the system or developer that follow each other are one."""
    for is_system, group in itertools.groupby(messages, _is_system):
        if is_system:
            yield Message(role="system", content=SEPARATOR.join(str(m.content) for m in group))
        else:
            yield from group


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer") and isinstance(message.content, str)
