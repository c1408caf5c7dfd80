"""``response_format`` as OpenAI's, TGI's and llama-server's clients send it."""

import json

import pytest

from quire.core.errors import RequestError
from quire.protocol.decode import decode_body
from quire.protocol.openai.chat_completion import ChatCompletionRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def constraint(response_format):
    body = {"messages": [], "response_format": response_format}
    decoded, ignored = decode_body(json.dumps(body).encode(), ChatCompletionRequest)
    assert not ignored
    return decoded.constraint()


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_the_schema_of_llama_server_s_clients_was_unknown(kind):
    """``{"type": "json_object", "schema": {...}}`` was a 400."""
    found = constraint({"type": kind, "schema": SCHEMA}).json
    assert isinstance(found, str) and json.loads(found) == SCHEMA
    assert constraint({"type": "json_object", "schema": None}).json_object


@pytest.mark.parametrize("others", [{"type": "text"}, {"json_schema": {"schema": SCHEMA}}])
def test_a_schema_that_would_be_dropped_is_refused(others):
    with pytest.raises(RequestError, match="response_format.schema"):
        constraint({"type": "json_schema", "schema": SCHEMA} | others)
