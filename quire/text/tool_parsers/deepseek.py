"""DeepSeek V3 and V3.1: marks around calls, the name and then the arguments alone."""

from __future__ import annotations

import re

from quire.text.marks import SPACE
from quire.text.tool_parsers.interface import Parsed
from quire.text.tool_parsers.parser import MAX_HEAD, StateParser

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCE = "```"
OPEN_FENCE = rf"(?:{FENCE}(?:json)?\s*)?"
EMPTY_FENCE = rf"(?:{FENCE}(?:json)?\s*(?:{FENCE}\s*)?)?"


class DeepseekV31Parser(StateParser):
    """A call is ``<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>``.

    Source: the chat templates of DeepSeek-V3-0324, -R1-0528 and -V3.1.
    """

    marks = (CALLS, CALL, CALL_END, CALLS_END, SEPARATOR)
    end_mark = CALL_END
    after_arguments = "after"
    #: What stands between a call's mark and its arguments, or its end where it has none.
    head = re.compile(rf"\s*([^\s{{<`]+)\s*{SEPARATOR}\s*{OPEN_FENCE}")
    bare = re.compile(rf"\s*([^\s{{<`]+)\s*(?:{SEPARATOR}\s*{EMPTY_FENCE})?")
    #: What stands after the arguments under way.
    tail = ""

    def flush(self) -> Parsed:
        """Return what was held back; a mark that was cut after a call is none of the answer."""
        _, text = self.split_space()
        if self.state == "calls" and self.num_calls and self._may_be_mark(text):
            self.buffer = ""
        return super().flush()

    @staticmethod
    def _may_be_mark(text: str) -> bool:
        return CALL.startswith(text) or CALLS_END.startswith(text)

    def in_content(self, parsed: Parsed) -> bool:
        """Look for a call, or for the mark of several."""
        if not self.find_next(parsed, CALLS, CALL):
            return False
        self.state = "head" if self.pending.endswith(CALL) else "calls"
        return True

    def in_calls(self, parsed: Parsed) -> bool:
        """Expect a call, or the end of all."""
        space, text = self.split_space()
        for mark, state in ((CALL, "head"), (CALLS_END, "content")):
            if text.startswith(mark):
                # The end is content where no call came before it.
                shown = not self.num_calls or state == "head"
                self.pending += space + mark if shown else ""
                self.buffer, self.state = text[len(mark) :], state
                return True
        if self._may_be_mark(text):
            return False
        self.awaited = (CALL_END, CALLS_END) if self.num_calls else ()
        self.state = "content"
        return True

    def in_head(self, parsed: Parsed) -> bool:
        """Expect a name, and what separates it from the arguments or from the call's end."""
        marks = ("{", CALL_END, CALLS_END)
        found = [at for mark in marks if (at := self.buffer.find(mark, 0, MAX_HEAD)) >= 0]
        if not found and len(self.buffer) < MAX_HEAD:
            return False
        at = min(found, default=0)
        is_bare = not self.buffer.startswith("{", at)
        head = (self.bare if is_bare else self.head).fullmatch(self.buffer[:at])
        if head is not None and is_bare:
            self.name_call(parsed, head[1], "{}")
            self.buffer, self.state = self.buffer[at:], "after"
        elif head is None:
            self.show_pending(parsed)
        else:
            self.tail = FENCE if FENCE in head[0] else ""
            self.begin_arguments(parsed, head[1], at)
        return True

    def in_after(self, parsed: Parsed) -> bool:
        """Expect the end mark; without it the next call or content begins."""
        _, text = self.split_space()
        if text.startswith(self.tail):
            text = text[len(self.tail) :].lstrip(SPACE)
        if text.startswith(CALL_END):
            self.buffer = text[len(CALL_END) :]
        elif self.ends_call(self.buffer):
            return False
        self.state = "calls"
        return True

    def ends_call(self, rest: str) -> bool:
        """Say whether ``rest`` is what follows arguments, or its beginning."""
        bare = "".join(rest.split())
        return any(end.startswith(bare) for end in (self.tail + CALL_END, CALL_END))


class DeepseekV3Parser(DeepseekV31Parser):
    """The same with a kind before the name and a fence of Markdown around the arguments."""

    head = re.compile(rf"\s*\w*\s*{SEPARATOR}\s*([^\s{{<`]+)\s*{OPEN_FENCE}")
    bare = re.compile(rf"\s*\w*\s*{SEPARATOR}\s*([^\s{{<`]+)\s*{EMPTY_FENCE}")
