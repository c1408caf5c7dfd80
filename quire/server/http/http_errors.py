"""Exceptions to HTTP: one status, one type and one body for each; nothing is raised here."""

from __future__ import annotations

import http
import logging
import math
import re
import uuid
from collections.abc import Mapping
from enum import Enum

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from quire.core.errors import (
    CapacityError,
    EngineDeadError,
    PromptTooLongError,
    RequestError,
)
from quire.core.quoting import shortened
from quire.llm.load_state import Loading
from quire.protocol.error_body import (
    AnthropicErrorBody,
    AnthropicErrorDetail,
    ErrorBody,
    ErrorDetail,
    FlatErrorBody,
)

logger = logging.getLogger(__name__)

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    414: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
}
#: Of the refusal of a model that is being loaded: the part that is, 0 to 1.
PROGRESS_HEADER = "Quire-Load-Progress"
#: Clients look for this word to shorten the conversation and try again.
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
#: TGI's kinds of errors; its clients raise an exception of their own for each.
_TGI_TYPES = dict.fromkeys((400, 413), "validation") | {
    429: "overloaded",
    500: "generation",
    503: "overloaded",
    504: "generation",
}
#: Anthropic's types of errors, which its clients act on.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
#: What clients read of an error, by its field: that they must send the whole conversation.
_ANTHROPIC_DETAILS = {"thread": {"error_code": "thread_unsupported_request"}}
#: Routes of servers whose errors are a text.
_FLAT_PATHS = frozenset({"/", "/info", "/generate", "/generate_stream", "/v2"})
_FLAT_BELOW = ("/api/", "/v2/")
_ANTHROPIC_PATH = "/v1/messages"
#: The folders of an absolute path; ids of the hub and addresses of pages are none.
_FOLDERS = re.compile(r"(?<![\w.:/])/(?=[\w.])(?:[^/\s'\"]+/)*")
#: Every request of Anthropic's clients has it.
ANTHROPIC_HEADER = b"anthropic-version"


class ErrorForm(Enum):
    """The shape of an error, by the kind of client that it is for."""

    OPENAI = ErrorBody
    FLAT = FlatErrorBody
    ANTHROPIC = AnthropicErrorBody


def error_form_of_path(path: str) -> ErrorForm:
    """Return the form of the errors of a route."""
    if path in _FLAT_PATHS or path.startswith(_FLAT_BELOW):
        return ErrorForm.FLAT
    if path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/"):
        return ErrorForm.ANTHROPIC
    return ErrorForm.OPENAI


def error_form(scope: Scope) -> ErrorForm:
    """Return the form in which the sender of a request expects its errors."""
    if any(name == ANTHROPIC_HEADER for name, _ in scope["headers"]):
        return ErrorForm.ANTHROPIC
    return error_form_of_path(path_of(scope))


def path_of(scope: Scope) -> str:
    """Return the path that a request asks for, without the prefix that a proxy strips."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: HTTP status.
        message: A text for people.
        type: A name for programs; by default the status's.
        param: The request field that is wrong.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = shortened(message)
        self.type = type or TYPES.get(status, "HTTPError")
        self.param = None if param is None else shortened(param)
        self.headers = dict(headers or {})

    def body(self, form: ErrorForm = ErrorForm.OPENAI, request_id: str | None = None) -> bytes:
        """Return the JSON body; only Anthropic's has the request's id."""
        if form is ErrorForm.FLAT:
            return msgspec.json.encode(
                FlatErrorBody(
                    error=self.message,
                    error_type=_TGI_TYPES.get(self.status),
                    type=self.type,
                    param=self.param,
                    code=self.status,
                )
            )
        if form is ErrorForm.ANTHROPIC:
            default = "invalid_request_error" if self.status < 500 else "api_error"
            kind = _ANTHROPIC_TYPES.get(self.status, default)
            details = _ANTHROPIC_DETAILS.get(self.param or "") if self.status == 400 else None
            detail = AnthropicErrorDetail(kind, self.message, details)
            return msgspec.json.encode(
                AnthropicErrorBody(type="error", error=detail, request_id=request_id)
            )
        return msgspec.json.encode(
            ErrorBody(
                ErrorDetail(
                    message=self.message, type=self.type, param=self.param, code=self.status
                )
            )
        )

    def response(self, scope: Scope) -> Response:
        """Return the HTTP response to a request."""
        body = self.body(error_form(scope), scope.get("request_id"))
        return Response(body, self.status, self.headers, "application/json")

    def closing_answer(self) -> bytes:
        """Return the whole answer as bytes, for a connection whose request cannot be served."""
        body = self.body()
        fields = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": uuid.uuid4().hex,
            **self.headers,
        }
        head = f"HTTP/1.1 {self.status} {http.HTTPStatus(self.status).phrase}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return head.encode() + b"\r\n" + body


def shutting_down() -> ApiError:
    """Return the refusal of a server that is about to end."""
    message = "The server is shutting down. Try another."
    return ApiError(503, message, headers={"Retry-After": "1"})


def not_loaded(name: str, loading: Loading) -> ApiError:
    """Return the refusal of a request for a model that is being loaded, and how far it is."""
    headers = {"Retry-After": str(loading.retry_after())}
    known = ""
    if loading.total_bytes:
        known = f" ({loading.part:.0%} of its weights are)"
        headers[PROGRESS_HEADER] = f"{loading.part:.2f}"
    return ApiError(503, f"The model {name} is not loaded yet{known}. Try again.", headers=headers)


def not_loadable(name: str, reason: str, retry_seconds: float) -> CapacityError:
    """Log why a model cannot be loaded, and return the refusal of requests for it."""
    logger.error("[models] %s cannot be loaded: %s", name, reason)
    told = f"[models] {name} cannot be loaded: {without_folders(reason)}"
    return CapacityError(told, retry_seconds)


def without_folders(text: str) -> str:
    """Return a text that names files without the folders of this machine that they are in."""
    return _FOLDERS.sub("", text)


def renamed(error: RequestError, sent_name: str) -> RequestError:
    """Return the error in the name that the field it is about was sent under."""
    place = re.compile(rf"\[{re.escape(error.param or '')}(?=[.\]])")  # or a field inside it
    return type(error)(place.sub(lambda _: f"[{sent_name}", str(error), count=1), sent_name)


def to_api_error(error: BaseException) -> ApiError:
    """Map any exception; one that was not raised on purpose is logged, its text not sent."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLongError):
        return ApiError(400, str(error), type=CONTEXT_LENGTH_EXCEEDED, param=error.param)
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param)
    if isinstance(error, CapacityError):
        seconds = max(1, math.ceil(error.retry_after_seconds or 1))
        return ApiError(503, str(error), headers={"Retry-After": str(seconds)})
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error))
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, error.detail, headers=error.headers)
    if isinstance(error, MemoryError):
        logger.error("[server] out of memory")
        return ApiError(503, "The server is out of memory.", headers={"Retry-After": "5"})
    logger.error("[server] request failed", exc_info=error)
    return ApiError(500, "Internal server error.")
