"""Settings of one prompt's beam search; vLLM's names, order and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn

from quire.core.errors import InvalidSamplingParamsError

MAX_BEAM_WIDTH = 128


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Settings of a beam search.

    Args:
        beam_width: Sequences kept after each step and returned, 1 to 128. A step asks for twice as
            many log-probabilities per token, so ``--max-logprobs`` bounds it, too.
        max_tokens: Output limit in tokens; all beams that do not end themselves get there.
        ignore_eos: Whether sequences continue after an end-of-sequence token.
        temperature: The number 0: nothing is drawn.
        length_penalty: A sequence's score is its log-probability divided by its length, prompt
            included and end-of-sequence token not, to this power; -10 to 10.
        include_stop_str_in_output: The value False: texts end before an end-of-sequence token.

    Raises:
        InvalidSamplingParamsError: A value has the wrong type or is out of range; the error's
            ``param`` names the field.

    Source: vLLM, ``vllm/beam_search.py``.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if not _is_whole(self.beam_width) or not 1 <= self.beam_width <= MAX_BEAM_WIDTH:
            _refuse("beam_width", f"must be a whole number in [1, {MAX_BEAM_WIDTH}]", self)
        if not _is_whole(self.max_tokens) or self.max_tokens < 1:
            _refuse("max_tokens", "must be a whole number of at least 1", self)
        if self.temperature != 0:
            _refuse("temperature", "must be 0 for a beam search, which draws nothing", self)
        if self.include_stop_str_in_output:
            _refuse("include_stop_str_in_output", "must be false for a beam search", self)
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float):
            _refuse("length_penalty", "must be a number", self)
        if not isfinite(penalty) or abs(penalty) > 10:
            _refuse("length_penalty", "must be in [-10, 10]", self)

    def score(self, logprob: float, num_tokens: int) -> float:
        """Return the score that sequences are ordered by, the best last.

        Args:
            logprob: Sum of the generated tokens' log-probabilities.
            num_tokens: Tokens of prompt and output, without an end-of-sequence token.
        """
        divisor: float = float(max(num_tokens, 1)) ** self.length_penalty
        return logprob / divisor


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse(name: str, rule: str, params: BeamSearchParams) -> NoReturn:
    raise InvalidSamplingParamsError(f"[{name}] {rule}; got {getattr(params, name)!r:.80}.", name)
