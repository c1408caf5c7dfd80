"""Failures of requests that had begun, to HTTP: one row for each kind; exceptions: ``errors``."""

from __future__ import annotations

from typing import NamedTuple

from quire.core.errors import FailureKind, RequestError, RequestFailure
from quire.server.http.http_errors import ApiError


class FailureAnswer(NamedTuple):
    """The answer to a kind of failure; message and param are the failure's own.

    Attributes:
        status: HTTP status.
        type: A name for programs; None for the status's.
        retry_after: Seconds after which it is worth trying again; None where the header is left
            out.
    """

    status: int
    type: str | None = None
    retry_after: int | None = None


ANSWERS = {
    FailureKind.ENGINE: FailureAnswer(500),
    FailureKind.KV_CANARY: FailureAnswer(500, type="KVCacheCorruptedError"),
    FailureKind.OUT_OF_MEMORY: FailureAnswer(503, retry_after=5),
    FailureKind.GRAMMAR_LIMIT: FailureAnswer(400),
    FailureKind.NO_TOKEN: FailureAnswer(400),
}


def failure_error(failure: RequestFailure) -> ApiError | RequestError:
    """Return the exception for a failure; of a 400, the route may rename the field at fault."""
    status, type, retry_after = ANSWERS[failure.kind]
    if status == 400:
        return RequestError(failure.message, failure.param)
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    message = failure.message
    if status == 500:
        message = f"The engine failed on this request: {message}"
    return ApiError(status, message, type=type, param=failure.param, headers=headers)
