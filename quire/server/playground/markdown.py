"""Markdown of an answer as a tree of elements; what the page may show of one is decided here.

The tree is not HTML: a text in it is a text, an element one of a few, and its only address is a
link that was checked. Images become links, so that no answer makes a browser call other servers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

#: A text, or ``[tag, {attribute: value}, *children]``.
Node = str | list[Any]

#: Depth of elements in one another: quotes, lists (which count twice), emphasis, links.
MAX_NESTING = 40
#: Of one text; the page sends longer ones in pieces.
MAX_CHARACTERS = 65536
#: A longer paragraph stays plain text: finding pairs of marks takes the square of its length.
MAX_INLINE_CHARACTERS = 8192
MAX_TABLE_COLUMNS = 64
#: Processor time of one text. The page's pieces take a tenth of it, on a machine where others wait.
MAX_SECONDS = 1.0
#: After this time other threads are let in.
SLICE_SECONDS = 0.001
SCHEMES = frozenset({"http", "https", "mailto"})
#: Elements that are shown, by the tags of Markdown; a page has its own first two headings.
TAGS = {
    "h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6",
    "s": "del",
    **{tag: tag for tag in "p ul ol li blockquote em strong table thead tbody tr th td".split()},
}  # fmt: skip
_ADDRESS = re.compile(r"https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}*_]")
_LINE_END = re.compile(r"\r\n|\r|\n")
_ALIGN = re.compile(r"text-align:(left|center|right)")


class TooComplex(Exception):
    """A text takes too long to read or is nested too deeply; it can be shown as it is."""


def render(text: str) -> list[tuple[int, Node]]:
    """Return the blocks of a text: where each begins, in UTF-16 units, and its element.

    A block that another follows stays as it is when text is appended, but for references that
    are defined later.

    Raises:
        TooComplex: The text takes longer than :data:`MAX_SECONDS`, or is nested deeper than
            :data:`MAX_NESTING`.
    """
    starts, end = [0], 0
    for match in _LINE_END.finditer(text):
        starts.append(starts[-1] + _utf16_length(text[end : match.end()]))
        end = match.end()
    reader = _Reader()
    tokens = reader.parse(text)
    blocks: list[tuple[int, Node]] = []
    at = 0
    while at < len(tokens):
        reader.look_at_clock()
        end = _closing(tokens, at)
        lines = tokens[at].map or [0]
        blocks.extend((starts[lines[0]], node) for node in _nodes(tokens[at : end + 1]))
        at = end + 1
    return blocks


def _utf16_length(text: str) -> int:
    """Return the length that a browser counts."""
    return len(text) + sum(character > "\uffff" for character in text)


class _Reader:
    """Reads one text within its time."""

    def __init__(self) -> None:
        reader = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING})
        reader.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
        # The rules below see every line and every mark; none of them matches anything.
        reader.block.ruler.before("table", "clock", self._no_block)
        reader.inline.ruler.before("text", "clock", self._no_inline)
        reader.core.ruler.at("inline", self._inline)
        self._reader = reader

    def parse(self, text: str) -> list[Token]:
        """Return the tokens; raises TooComplex."""
        # Each row of a table is filled up to its columns, however short the row is.
        if any(line.count("|") > MAX_TABLE_COLUMNS for line in text.split("\n")):
            self._reader.disable("table")
        self._slice_end = time.monotonic() + SLICE_SECONDS
        self._end = time.thread_time() + MAX_SECONDS
        return self._reader.parse(text)

    def look_at_clock(self) -> None:
        """Let other threads run after a slice; raises TooComplex when the time is over."""
        if time.monotonic() > self._slice_end:
            if time.thread_time() > self._end:
                raise TooComplex
            time.sleep(0)
            self._slice_end = time.monotonic() + SLICE_SECONDS

    def _no_block(self, state: StateBlock, *_: object) -> bool:
        self.look_at_clock()
        if state.level >= MAX_NESTING - 2:  # The reader would leave out what is deeper.
            raise TooComplex
        return False

    def _no_inline(self, *_: object) -> bool:
        self.look_at_clock()
        return False

    def _inline(self, state: StateCore) -> None:
        for token in state.tokens:
            if token.type != "inline":
                continue
            self.look_at_clock()
            token.children = []
            if len(token.content) > MAX_INLINE_CHARACTERS:
                token.children.append(Token("text", "", 0, content=token.content))
            else:
                state.md.inline.parse(token.content, state.md, state.env, token.children)


def _closing(tokens: Sequence[Token], at: int) -> int:
    """Return the index of the token that closes the one at ``at``."""
    depth = 0
    for index in range(at, len(tokens)):
        depth += tokens[index].nesting
        if depth <= 0:
            return index
    return len(tokens) - 1


def _nodes(tokens: Sequence[Token]) -> list[Node]:
    """Return the nodes of tokens that are closed among themselves; raises TooComplex."""
    root: list[Any] = []
    open_nodes = [root]
    num_links = 0  # Of the open ones; a link holds no other.
    for token in _with_children(tokens):
        if token.nesting < 0:
            num_links -= open_nodes.pop()[:1] == ["a"]
        elif token.nesting > 0:
            if len(open_nodes) > MAX_NESTING:
                raise TooComplex
            # The paragraphs of a list without empty lines are not shown as such.
            node = open_nodes[-1] if token.hidden else _open(token)
            if node is not open_nodes[-1]:
                open_nodes[-1].append(node)
            open_nodes.append(node)
            num_links += node[:1] == ["a"]
        else:
            open_nodes[-1].extend(_leaf(token, num_links > 0))
    return root


def _with_children(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens, for each text what it consists of."""
    for token in tokens:
        if token.type == "inline":
            yield from token.children or ()
        else:
            yield token


def _open(token: Token) -> list[Any]:
    attributes: dict[str, Any] = {}
    if token.type == "link_open":
        return ["a", {"href": href}] if (href := safe_href(token.attrGet("href"))) else ["span", {}]
    if token.tag == "ol" and token.attrGet("start") is not None:
        attributes["start"] = token.attrGet("start")
    if token.tag in ("th", "td") and (found := _ALIGN.match(str(token.attrGet("style") or ""))):
        attributes["align"] = found[1]
    return [TAGS[token.tag], attributes]


def _leaf(token: Token, inside_link: bool) -> Iterator[Node]:
    match token.type:
        case "text":
            yield from [token.content] if inside_link else _with_links(token.content)
        case "code_inline":
            yield ["code", {}, token.content]
        case "fence" | "code_block":
            words = token.info.split()
            yield ["pre", {"language": words[0][:40]} if words else {}, token.content]
        case "softbreak" | "hardbreak":
            yield ["br", {}]
        case "hr":
            yield ["hr", {}]
        case "image":
            href, text = safe_href(token.attrGet("src")), token.content or "image"
            yield ["a", {"href": href}, text] if href and not inside_link else text
        case _:
            yield token.content


def _with_links(text: str) -> Iterator[Node]:
    """Yield a text whose written-out addresses are links."""
    end = 0
    for match in _ADDRESS.finditer(text):
        if href := safe_href(match[0]):
            yield from filter(None, (text[end : match.start()],))
            yield ["a", {"href": href}, match[0]]
            end = match.end()
    yield from filter(None, (text[end:],))


def safe_href(address: object) -> str | None:
    """Return an address that may be followed, or None."""
    try:
        parts = urlsplit(str(address or ""))
    except ValueError:
        return None
    whole = parts.scheme in SCHEMES and (parts.scheme == "mailto" or parts.netloc)
    return str(address) if whole else None
