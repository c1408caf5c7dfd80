"""An answer as it grows on stdout: Markdown drawn anew on a terminal, the text itself elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from quire.cli.chat.chat_session import Thought

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown

#: The part of an answer that may still change is drawn as often, at most.
DRAW_SECONDS = 1 / 15
#: Control characters of a model's text would be commands to the terminal.
_CONTROLS: dict[int, str] = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd")
_CONTROLS |= {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}


def show_answer(pieces: Iterable[str]) -> None:
    """Write an answer's pieces as they arrive, and a new line after the last one.

    A terminal shows thoughts before it; elsewhere there is the answer alone.
    """
    console: Console | None = None
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
    if console is None or console.is_dumb_terminal:
        for piece in pieces:
            if not isinstance(piece, Thought):
                sys.stdout.write(piece)
                sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
        return
    for thinks, part in groupby(filter(None, pieces), lambda piece: isinstance(piece, Thought)):
        if thinks:
            console.print("Thinking…", style="dim")
        view = AnswerView(console, style="dim" if thinks else "")
        try:
            for piece in part:
                view.add(piece)
        finally:
            view.end()
        if thinks:
            console.print("…done thinking.\n", style="dim")


class AnswerView:
    """Markdown that grows: finished blocks are printed, the last one is drawn anew.

    ::

        text     # Title ¶ a paragraph ¶ - one ¶ - tw
                 └──── printed for good ──┘ └ drawn ┘   at most a screen of it

    Args:
        console: A terminal.
        style: A style of rich for all the text.
        clock: Seconds that only grow.
    """

    def __init__(
        self, console: Console, style: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.live import Live

        self._console = console
        self._style = style
        self._clock = clock
        self._tail = ""
        self._follows = False
        self._drawn = -DRAW_SECONDS
        self._live = Live(
            console=console, auto_refresh=False, transient=True, vertical_overflow="crop"
        )
        self._live.start()

    def add(self, piece: str) -> None:
        """Take the next piece of the text."""
        self._tail += piece.translate(_CONTROLS)
        now = self._clock()
        if now - self._drawn < DRAW_SECONDS:
            return
        self._drawn = now
        end = _finished(self._tail)
        if end:
            # The new last block is drawn first, so that the finished one is never seen twice.
            done, self._tail = self._tail[:end], self._tail[end:]
            self._live.update(_Block(self._tail, self._style, follows=True))
            self._print(done)
        self._live.update(_Block(self._tail, self._style, self._follows), refresh=True)

    def end(self) -> None:
        """Print what is left; the terminal is as it was before."""
        self._live.update("")
        self._live.stop()
        self._print(self._tail)

    def _print(self, text: str) -> None:
        if text.strip():
            whole = _Block(text, self._style, self._follows, is_whole=True)
            self._console.print(whole, end="")
            self._follows = True


class _Block:
    """Markdown without empty lines around it, but for one above where others stand before it.

    Args:
        is_whole: All of it; else the last lines that fit on the screen.
    """

    def __init__(self, text: str, style: str, follows: bool, is_whole: bool = False) -> None:
        self._text = text
        self._style = style
        self._follows = follows
        self._is_whole = is_whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        options, style = options.update(height=None), console.get_style(self._style or "none")
        lines = console.render_lines(_markdown(self._text), options, style=style, pad=False)
        filled = [i for i, line in enumerate(lines) if any(part.text.strip() for part in line)]
        lines = lines[filled[0] : filled[-1] + 1] if filled else []
        if self._follows and lines:
            lines.insert(0, [])
        for line in lines if self._is_whole else lines[-max(1, console.height - 1) :]:
            yield from line
            yield Segment.line()


def _parse(text: str) -> list[Token]:
    """Return the tokens of a text as people mean it: new lines are kept, tags are text."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    tokens = parser.parse(text)
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return tokens


def _markdown(text: str) -> Markdown:
    from rich.markdown import Markdown

    drawn = Markdown("", hyperlinks=False)
    drawn.parsed = _parse(text)
    return drawn


def _finished(text: str) -> int:
    """Return where the last block of a text begins: those before it cannot change any more."""
    starts = [token.map[0] for token in _parse(text) if token.level == 0 and token.map]
    if len(starts) < 2:
        return 0
    lines = text.split("\n")  # as the parser counts them: U+2028 and others end none
    return sum(len(line) + 1 for line in lines[: starts[-1]])
