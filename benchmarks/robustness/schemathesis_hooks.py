"""What an answer to any request that fits the OpenAPI document, or nearly, must be like."""

from __future__ import annotations

import schemathesis


@schemathesis.check
def honest_status(ctx, response, case):  # type: ignore[no-untyped-def]
    """No 5xx, but for a timeout that the request itself set too short."""
    body = case.body if isinstance(case.body, dict) else {}
    expired = response.status_code == 504 and "timeout" in body
    assert response.status_code < 500 or expired, response.status_code


@schemathesis.check
def error_body(ctx, response, case):  # type: ignore[no-untyped-def]
    """Every error has OpenAI's body."""
    if response.status_code >= 400 and case.method != "HEAD":
        error = response.json()["error"]
        assert error["message"] and error["type"] and error["code"] == response.status_code
