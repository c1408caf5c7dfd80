"""The messages of gpt-oss's Harmony format, as they arrive: channel, recipient and text.

An answer continues after ``<|start|>assistant`` with a message or several:
``<|channel|>analysis<|message|>`` text ``<|end|>``, and ``<|start|>assistant`` before the next.
What is made of a channel, the parsers of reasoning and of tool calls say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.text.json_scanner import JsonScanner
from quire.text.marks import SPACE, held_back

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
#: All of them; they are special tokens and must be shown.
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
#: Longest header of a message, in characters; what is longer is plain text.
MAX_HEADER = 512
FUNCTIONS = "functions."
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
_BEGINS = (START, CHANNEL, "to=")
_ENDS = (END, CALL, RETURN)
_NEW = (START, CHANNEL)  # of the next message, where the end of the last one is missing
_END = re.compile("|".join(re.escape(mark) for mark in (*_ENDS, *_NEW)))
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


@dataclass(frozen=True, slots=True)
class Header:
    """A message's channel and recipient.

    Attributes:
        channel: ``analysis``, ``commentary``, ``final`` or another; empty when none is named.
        recipient: A tool such as ``functions.now``; empty for the user.
    """

    channel: str
    recipient: str

    @property
    def function(self) -> str:
        """The function that is called; empty for none."""
        return self.recipient.removeprefix(FUNCTIONS) if self.is_call else ""

    @property
    def is_call(self) -> bool:
        """Whether a function is called."""
        return self.recipient.startswith(FUNCTIONS) and self.recipient != FUNCTIONS

    @property
    def is_reasoning(self) -> bool:
        """Whether it is not for the user; calls of the tools of the model itself are not."""
        return not self.is_call and (self.channel == "analysis" or bool(self.recipient))


#: Text that stands in no message.
PLAIN = Header("", "")


@dataclass(frozen=True, slots=True)
class HarmonyPiece:
    """A part of the text; all of them joined are the text.

    Attributes:
        header: The header of the message that the piece belongs to.
        text: The text as the model wrote it.
        role: ``header``, ``body`` or ``end``.
    """

    header: Header
    text: str
    role: str = "body"


class HarmonyReader:
    """Splits an answer into pieces of messages, which joined do not depend on how it is cut.

    Args:
        header: The header of the message that the prompt began; None when the answer begins it.

    Attributes:
        header: The header of the message under way; None between messages.
    """

    def __init__(self, header: Header | None = None) -> None:
        self.header = header
        self._buffer = ""
        self._arguments = JsonScanner()

    def add(self, text: str) -> list[HarmonyPiece]:
        """Take the next text and return the pieces that are certain."""
        self._buffer += text
        pieces: list[HarmonyPiece] = []
        while self._buffer:
            read = self._read_header if self.header is None else self._read_body
            if not read(pieces):
                break
        return pieces

    def flush(self) -> list[HarmonyPiece]:
        """Return what was held back; the answer has ended."""
        rest, self._buffer = self._buffer, ""
        if not rest:
            return []
        text = rest.lstrip(SPACE)
        is_cut = self.header is None and (not text or text.startswith((START, CHANNEL)))
        return [HarmonyPiece(self.header or PLAIN, rest, "header" if is_cut else "body")]

    def _read_header(self, pieces: list[HarmonyPiece]) -> bool:
        text = self._buffer.lstrip(SPACE)
        begun = [mark for mark in _BEGINS if text.startswith(mark)]
        at = self._buffer.find(MESSAGE, 0, MAX_HEADER)
        if begun and at >= 0:
            end = at + len(MESSAGE)
            header, self._buffer = self._buffer[:end], self._buffer[end:]
            self.header = read_header(header)
            self._arguments = JsonScanner()
            pieces.append(HarmonyPiece(self.header, header, "header"))
            return True
        waits = bool(begun) or any(mark.startswith(text) for mark in _BEGINS)
        if waits and len(self._buffer) < MAX_HEADER:
            return False
        # The first character is taken, so that a mark is not found again.
        pieces.append(HarmonyPiece(PLAIN, self._buffer[:1]))
        self.header, self._buffer = PLAIN, self._buffer[1:]
        return True

    def _read_body(self, pieces: list[HarmonyPiece]) -> bool:
        header = self.header or PLAIN
        found = _END.search(self._buffer)
        keep = 0 if found else max(held_back(self._buffer, mark) for mark in (*_ENDS, *_NEW))
        at = found.start() if found else len(self._buffer) - keep
        if at:
            self._take(pieces, header, at)
        if found is None:
            return False
        if header.is_call and self._arguments.in_string:  # a mark in an argument is text
            self._take(pieces, header, len(found[0]))
            return True
        self.header = None
        if found[0] not in _NEW:
            pieces.append(HarmonyPiece(header, found[0], "end"))
            self._buffer = self._buffer[len(found[0]) :]
        return True

    def _take(self, pieces: list[HarmonyPiece], header: Header, size: int) -> None:
        """Move characters of a message's text from the buffer to a piece."""
        text, self._buffer = self._buffer[:size], self._buffer[size:]
        pieces.append(HarmonyPiece(header, text))
        if header.is_call and not (self._arguments.done or self._arguments.error):
            self._arguments.feed(text)


def read_header(text: str) -> Header:
    """Return what a message's header says, from its mark of a start or a channel on."""
    channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
    return Header(channel[1] if channel else "", recipient[1] if recipient else "")
