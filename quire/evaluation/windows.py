"""Texts of tokens cut into windows, of which each token counts once; it knows no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Tokens that a model sees together.

    Attributes:
        token_ids: (T,) int32.
        first: The first token whose loss counts, at least 1: those before are context only.
    """

    token_ids: np.ndarray
    first: int

    @property
    def num_counted(self) -> int:
        """Tokens whose loss counts."""
        return len(self.token_ids) - self.first


@dataclass(frozen=True, slots=True)
class Cut:
    """The rule by which texts are cut into windows.

    Attributes:
        window: Most tokens of a window.
        stride: New tokens of each further window of a text; None for all that fit: windows that do
            not overlap.
        start: Tokens that every window begins with, such as the model's start of a text.
    """

    window: int
    stride: int | None = None
    start: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse windows that hold no text, and strides that leave tokens out.

        Raises:
            ConfigError: A window or stride is of that kind; its flag is named.
        """
        if self.window < 2 or self.room < 1:
            raise ConfigError(
                f"[eval] --window must be at least {max(2, len(self.start) + 1)} tokens; got "
                f"{self.window}."
            )
        if self.stride is not None and not 1 <= self.stride <= self.room:
            raise ConfigError(
                f"[eval] --stride must be in 1..{self.room}, the tokens of text in a window; got "
                f"{self.stride}."
            )

    @property
    def room(self) -> int:
        """Tokens of text that a window holds."""
        return self.window - len(self.start)

    def windows(self, texts: Iterable[Sequence[int]]) -> list[Window]:
        """Return the windows of texts; no window holds tokens of two.

        A token counts in the first window that holds it. The first token of a text is context only
        unless windows have a start, and so is each window's where windows do not overlap.
        """
        return [window for text in texts for window in self._of_text(text)]

    def _of_text(self, text: Sequence[int]) -> Iterable[Window]:
        start, stride = len(self.start), self.stride or self.room
        end = begin = 0
        while end < len(text):
            counted = start + end - begin
            end = min(begin + self.room, len(text))
            token_ids = np.array([*self.start, *text[begin:end]], np.int32)
            window = Window(token_ids, max(1, counted))
            if window.num_counted > 0:
                yield window
            begin += stride


def first_tokens(texts: Sequence[Sequence[int]], limit: int) -> list[Sequence[int]]:
    """Return the texts up to ``limit`` tokens in all; the last one may be cut."""
    kept: list[Sequence[int]] = []
    for text in texts:
        if limit <= 0:
            break
        kept.append(text[:limit])
        limit -= len(kept[-1])
    return kept
