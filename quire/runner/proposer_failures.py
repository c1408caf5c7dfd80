"""Keeps a proposer that fails from failing more than its own proposals."""

from __future__ import annotations

from types import TracebackType

from quire.core.log import get_logger

log = get_logger(__name__)


class ProposerFailures:
    """A context in which one method's proposer is called: what it raises ends the context alone.

    The first failure is logged, and all are counted. What the proposer knows may be incomplete from
    then on: the target draws every token, so that costs proposals and changes no answer.

    Args:
        method: Its name.

    Attributes:
        count: Failures so far.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self.count = 0

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        """Take an error; what ends the process is none of those."""
        if not isinstance(error, Exception):
            return False
        if not self.count:
            log.error(
                "[speculation] %s failed: requests go on without its proposals",
                self._method,
                exc_info=error,
            )
        self.count += 1
        return True
