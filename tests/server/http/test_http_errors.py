"""Texts of errors on their way to clients."""

from __future__ import annotations

import pytest

from quire.core.errors import ModelLoadError, RequestError
from quire.core.quoting import MAX_MESSAGE
from quire.server.http.http_errors import ApiError, to_api_error, without_folders


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[load] /srv/models/a-b.gguf: split.count must be 1", "[load] a-b.gguf: split.co"),
        ("[store] '/srv/x/a%2Fb.toml' must be a manifest", "[store] 'a%2Fb.toml' must be"),
        ("got /model, or /a/b", "got model, or b"),
        ("org/name:Q4_K_M and/or hf.co/org/name", "org/name:Q4_K_M and/or hf.co/org/name"),
        ("see https://hub/org/name (1 / 2)", "see https://hub/org/name (1 / 2)"),
    ],
)
def test_files_are_named_without_their_folders(text, told):
    assert without_folders(text).startswith(told)


def test_an_error_does_not_send_megabytes_back():
    """A name of 30 MB came back whole, and so did the path of the field that it stood in."""
    error = ApiError(404, "The model `" + "a" * 10**6, param="b" * 10**6)
    assert len(error.body()) < 3 * MAX_MESSAGE
    assert error.message == "The model `" + "a" * (MAX_MESSAGE - 11) + "..."
    refused = to_api_error(RequestError("é" * 10**6, "x"))
    assert len(refused.message) == MAX_MESSAGE + 3 and refused.param == "x"
    assert len(str(ModelLoadError("x" * 10**6))) == MAX_MESSAGE + 3
