"""Texts of errors on their way to clients."""

from __future__ import annotations

import pytest

from quire.server.http.errors import without_folders


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
