"""Failures of requests that had begun, as answers."""

from __future__ import annotations

import msgspec
import pytest

from quire.core.errors import FailureKind, RequestError, RequestFailure
from quire.core.step import SequenceResult
from quire.server.http.failures import ANSWERS, failure_error
from quire.server.http.http_errors import ApiError


def test_each_kind_has_an_answer() -> None:
    assert set(ANSWERS) == set(FailureKind)


@pytest.mark.parametrize("kind", FailureKind)
def test_a_failure_travels_between_processes(kind: FailureKind) -> None:
    result = SequenceResult(error=RequestFailure(kind, "[where] rule.", "field"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=SequenceResult) == result


def test_a_fault_of_the_engine_says_so() -> None:
    error = failure_error(RequestFailure(FailureKind.KV_CANARY, "[kv_canary] it changed."))
    assert isinstance(error, ApiError)
    assert (error.status, error.type) == (500, "KVCacheCorruptedError")
    assert error.message == "The engine failed on this request: [kv_canary] it changed."


def test_a_lack_of_memory_says_when_to_try_again() -> None:
    error = failure_error(RequestFailure(FailureKind.OUT_OF_MEMORY, "[memory] too little."))
    assert isinstance(error, ApiError)
    assert (error.status, error.message) == (503, "[memory] too little.")
    assert error.headers == {"Retry-After": "5"}


@pytest.mark.parametrize("kind", [FailureKind.GRAMMAR_LIMIT, FailureKind.NO_TOKEN])
def test_what_the_sender_can_help_is_an_error_of_the_request(kind: FailureKind) -> None:
    error = failure_error(RequestFailure(kind, "[x] rule.", "x"))
    assert isinstance(error, RequestError)
    assert (str(error), error.param) == ("[x] rule.", "x")
