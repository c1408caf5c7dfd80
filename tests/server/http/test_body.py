"""Bodies of requests, as routes read them."""

from __future__ import annotations

import pytest

from quire.core.errors import RequestError
from quire.protocol.decode import decode_json
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.server.http import body

MESSAGES = '"messages": [{"role": "user", "content": "Hi"}]'


@pytest.mark.parametrize("strict", [False, True])
def test_a_long_name_of_a_field_is_quoted_in_part(monkeypatch, strict):
    """The header for ignored fields quoted a name of 32 MB whole, a second of the event loop."""
    quoted = []

    def quote(name, safe):
        quoted.append(name)
        return name.replace("é", "%C3%A9")

    monkeypatch.setattr(body, "quote", quote)
    fields = decode_json(f'{{"{"é" * 10**5}": 1, "b c": 2, {MESSAGES}}}'.encode())
    if strict:
        with pytest.raises(RequestError, match="refused under --strict-params"):
            body.read_fields(fields, ChatCompletionRequest, True)
    else:
        _, headers = body.read_fields(fields, ChatCompletionRequest, False)
        assert headers["X-Ignored-Params"] == ("%C3%A9" * 17)[:100] + ", b c"
    assert max(map(len, quoted)) == body.MAX_NAME_CHARACTERS
