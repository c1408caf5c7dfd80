"""What an answer to any request that fits the OpenAPI document, or nearly, must be like."""

from __future__ import annotations

from pathlib import Path

import schemathesis
from hypothesis.configuration import set_hypothesis_home_dir

from quire.server.http.http_errors import ErrorForm, error_form_of_path

#: Tables of characters, which take seconds to make, are kept here, and not in the working folder.
set_hypothesis_home_dir(Path(__file__).parents[2] / ".hypothesis")

#: What the served model, or any here, cannot do.
NOT_HERE = ("/infill", "/props", "/slots/")


@schemathesis.check
def honest_status(ctx, response, case):  # type: ignore[no-untyped-def]
    """No 5xx, but for a timeout that the request itself set too short, and what cannot be done."""
    body = case.body if isinstance(case.body, dict) else {}
    status = response.status_code
    expired = status == 504 and "timeout" in body
    not_here = status == 501 and case.formatted_path.startswith(NOT_HERE)
    assert status < 500 or expired or not_here, status


@schemathesis.check
def error_body(ctx, response, case):  # type: ignore[no-untyped-def]
    """Every error has OpenAI's body, or that of the shape that the route is in."""
    if response.status_code >= 400 and case.method != "HEAD":
        body = response.json()
        form = error_form_of_path(case.formatted_path)
        if form is ErrorForm.ANTHROPIC:
            assert body["type"] == "error" and body["request_id"]
            assert body["error"]["message"] and body["error"]["type"].islower()
            return
        flat = isinstance(body["error"], str)
        assert flat == (form is ErrorForm.FLAT), body
        error = body | {"message": body["error"]} if flat else body["error"]
        assert error["message"] and error["type"] and error["code"] == response.status_code
