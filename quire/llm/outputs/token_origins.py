"""The origin of a sequence's tokens: proposed and accepted, drawn, or forced by a grammar."""

from __future__ import annotations

from quire.core.step import SequenceResult

DRAWN, FORCED = "model", "grammar"


def token_origins(result: SequenceResult, method: str | None) -> list[str]:
    """Return the origin of each token that a step brought.

    Args:
        result: The step's result.
        method: Name of the method that proposes the sequence's tokens.
    """
    accepted, forced = result.num_accepted, result.num_forced
    drawn = len(result.token_ids) - accepted - forced
    return [method or DRAWN] * accepted + [DRAWN] * drawn + [FORCED] * forced
