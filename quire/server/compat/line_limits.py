"""Ends that llama-server puts to a text by its lines: too little indentation, or too much time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from quire.core.outputs import RequestOutput
from quire.server.generation.generation_outputs import Outputs


@dataclass(slots=True)
class LineLimits:
    """The limits of one text, from its first delta to its last.

    Attributes:
        min_indent: Blanks and tabs that each line after the first begins with, at least.
        max_seconds: Seconds from the first token after which a text with a line's end is ended;
            None for no limit.
    """

    min_indent: int = 0
    max_seconds: float | None = None
    _num_lines: int = 0
    _indent: int | None = None

    async def apply(self, outputs: Outputs) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Yield the deltas of one prompt up to the end, which has ``length`` as its reason."""
        async with aclosing(outputs):
            async for index, output in outputs:
                for completion in output.outputs:
                    kept = self._kept(completion.text)
                    if kept < len(completion.text) or (
                        not output.finished and self._is_late(output)
                    ):
                        completion.text = completion.text[:kept]
                        completion.finish_reason, completion.stop_reason = "length", None
                        output.finished = True
                yield index, output
                if output.finished:
                    return

    def _is_late(self, output: RequestOutput) -> bool:
        times = output.metrics
        seconds = times.last_token_time - times.first_token_time
        return self.max_seconds is not None and self._num_lines > 0 and seconds > self.max_seconds

    def _kept(self, text: str) -> int:
        """Return how many characters of the next piece are kept; a line's first blanks are."""
        for place, character in enumerate(text):
            if self._indent is not None:
                if character in " \t":
                    self._indent += 1
                    continue
                if self._indent < self.min_indent:
                    return place
                self._indent = None
            if character == "\n":
                self._num_lines += 1
                self._indent = 0
        return len(text)
