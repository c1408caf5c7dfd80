"""Failures of proposers, which cost their own proposals and nothing more."""

from __future__ import annotations

from types import TracebackType

from quire.system.log import get_logger

log = get_logger(__name__)


class ProposerFailures:
    """A context in which one method's proposer is called: its errors end the context alone.

    The first failure is logged, and all are counted. The proposer's state may be incomplete from
    then on: the target draws every token, so that this costs proposals and changes no answer.

    Args:
        method: Name of the method.

    Attributes:
        count: Failures so far.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self.count = 0

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        """Suppress an error, except those that end the process."""
        if not isinstance(error, Exception):
            return False
        if not self.count:
            log.error(
                "[speculation] %s failed: requests continue without its proposals",
                self._method,
                exc_info=error,
            )
        self.count += 1
        return True
