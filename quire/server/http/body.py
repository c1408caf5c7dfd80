"""Read a JSON body with a size limit, and say which of its fields were not understood."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request

from quire.core.errors import RequestError
from quire.protocol.decode import decode_body
from quire.server.http.errors import ApiError

T = TypeVar("T", bound=msgspec.Struct)

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_NAMED_FIELDS = 20


async def read_request(request: Request, kind: type[T], strict: bool) -> tuple[T, dict[str, str]]:
    """Return the decoded body, and the response headers that name unknown fields.

    Args:
        request: The HTTP request; its body is consumed.
        kind: A struct of :mod:`quire.protocol`.
        strict: Refuse unknown fields.

    Raises:
        ApiError: 413 too large, 415 not JSON by its content type, or compressed.
        RequestError: The content is wrong.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A web page may send a form or text to this machine without asking; JSON it may not.
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(
            415, f"[content-type] must be application/json; got {media_type or 'nothing'}."
        )
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", ""):
        raise ApiError(
            415,
            f"[content-encoding] a body must be sent as it is; got {coding[:40]!a}.",
            headers={"Accept-Encoding": "identity"},
        )
    decoded, ignored = decode_body(await read_body(request), kind)
    if not ignored:
        return decoded, {}
    names = [quote(name, safe="[].") for name in ignored[:MAX_NAMED_FIELDS]]
    if strict:
        raise RequestError(
            f"[body] unknown fields are refused under --strict-params; got {', '.join(names)}.",
            ignored[0],
        )
    if len(ignored) > MAX_NAMED_FIELDS:
        names.append("...")
    return decoded, {"X-Ignored-Params": ", ".join(name[:100] for name in names)}


def read_timeout(request: Request) -> float | None:
    """Return the seconds that the header ``X-Request-Timeout`` gives, or None without it.

    Raises:
        ApiError: 400, it is no positive number.
    """
    text = request.headers.get("x-request-timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise ApiError(400, f"[x-request-timeout] must be seconds above 0; got {text[:40]!a}.")
    return seconds


async def read_body(request: Request) -> bytes:
    """Return the bytes of a body.

    Raises:
        ApiError: 413, there are too many.
    """
    too_large = ApiError(413, f"[body] must be at most {MAX_BODY_BYTES} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise too_large
    chunks = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)
