"""What a request may cost before anything of it is understood."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from quire.core.errors import RequestError
from quire.protocol import body_limits, decode
from quire.protocol.body_limits import PROMPT_LIMIT, SETTING_LIMIT, check_field
from quire.protocol.decode import MAX_FIELDS, decode_body
from quire.protocol.openai.chat_completion import ChatCompletionRequest

MESSAGES = [{"role": "user", "content": "Hi"}]


def refused(**fields):
    with pytest.raises(RequestError) as refusal:
        decode_body(json.dumps({"messages": MESSAGES} | fields).encode(), ChatCompletionRequest)
    return refusal.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat_template_kwargs", {"a": [[]] * SETTING_LIMIT.num_nested}),
        ("tools", [{"type": "function", "function": {"name": "f"}}] * 9000),
        ("messages", [{"role": "user", "content": ""}] * PROMPT_LIMIT.num_nested),
        ("messages", [{"role": "user", "content": [{}] * PROMPT_LIMIT.num_nested}]),
        ("response_format", {"type": "json_schema", "a": [{"b": []}] * 10_000}),
    ],
)
def test_too_many_objects_and_lists(name, value):
    error = refused(**{name: value})
    limit = PROMPT_LIMIT if name == "messages" else SETTING_LIMIT
    wanted = f"[{name}] may hold at most {limit.num_nested} objects and lists; got more."
    assert str(error) == wanted and error.param == name


@pytest.mark.parametrize("name", ["stop", "allowed_token_ids", "bad_words"])
def test_too_many_items(name):
    error = refused(**{name: [1] * (SETTING_LIMIT.num_items + 2)})
    assert str(error) == f"[{name}] may hold at most 262144 items; got more."


@pytest.mark.parametrize("name", ["images", "documents"])
def test_a_few_large_values_are_taken(name):
    """A photo was refused as a setting of more than 4 MiB."""
    check_field(name, msgspec.Raw(json.dumps(["a" * 6_000_000]).encode()))
    with pytest.raises(RequestError, match="262144 items"):
        check_field(name, msgspec.Raw(json.dumps([""] * 300_000).encode()))


@pytest.mark.parametrize("name", ["x%d", "x"])
def test_too_many_fields(name):
    """Each was created, looked up and named: 32 MB of them held up all requests for seconds."""

    def decoded(number):
        names = (name % i if "%" in name else name for i in range(number))
        body = '{"messages":[]' + "".join(f',"{name}":1' for name in names) + "}"
        return decode_body(body.encode(), ChatCompletionRequest)

    _, ignored = decoded(MAX_FIELDS - 1)
    assert len(ignored) == (MAX_FIELDS - 1 if "%" in name else 1)
    with pytest.raises(RequestError, match=r"\[body\] may hold at most 4096 fields; got more\."):
        decoded(MAX_FIELDS)


def test_fields_beyond_the_limit_are_not_looked_at(monkeypatch):
    named, create = [], decode._FieldName.__new__
    monkeypatch.setattr(
        decode._FieldName, "__new__", lambda kind, name: named.append(name) or create(kind, name)
    )
    body = b"{%b}" % b",".join(b'"%d":1' % i for i in range(100_000))
    with pytest.raises(RequestError):
        decode.decode_json(body)
    assert len(named) == MAX_FIELDS


def test_too_many_bytes_of_a_setting():
    error = refused(chat_template_kwargs={"a": "x" * SETTING_LIMIT.num_bytes})
    assert str(error) == "[chat_template_kwargs] may hold at most 4194304 bytes; got 4194313."


def test_a_long_text_may_hold_any_characters():
    text = '{[,"\\' * (PROMPT_LIMIT.num_items // 2)
    body = {"messages": [{"role": "user", "content": text}], "stop": ["a"]}
    request, ignored = decode_body(json.dumps(body).encode(), ChatCompletionRequest)
    assert request.messages[0].content == text and not ignored


def test_token_ids_may_fill_a_long_context():
    ids = json.dumps([[123_456] * 2000] * 1000).encode()
    check_field("prompt", msgspec.Raw(ids))


def test_counts_outside_strings(monkeypatch):
    monkeypatch.setattr(body_limits, "PIECE_BYTES", 7)
    for seed in range(200):
        rnd = random.Random(seed)

        def value(depth, rnd=rnd):
            kind = rnd.randrange(4 if depth else 2)
            if kind == 0:
                return rnd.choice([1, None, True, -2.5])
            if kind == 1:
                return "".join(rnd.choices('ab"\\,{}[]:ä\n', k=rnd.randrange(9)))
            if kind == 2:
                return [value(depth - 1) for _ in range(rnd.randrange(4))]
            return {
                "".join(rnd.choices('k"\\{,', k=3)) + str(i): value(depth - 1)
                for i in range(rnd.randrange(4))
            }

        found = value(5)

        def nested(v):
            if isinstance(v, dict):
                return 1 + sum(map(nested, v.values()))
            return 1 + sum(map(nested, v)) if isinstance(v, list) else 0

        data = json.dumps(found, ensure_ascii=rnd.random() < 0.5).encode()
        for limit in range(max(0, nested(found) - 2), nested(found) + 2):
            more = body_limits._is_more_outside(data, b"{[", limit)
            assert more == (nested(found) > limit), data


def test_a_large_field_is_counted_piece_by_piece():
    """Taking the escapes out of 32 MB at once kept the interpreter from all other threads."""

    class Pieces(bytes):
        def replace(self, *_):
            raise AssertionError("the whole field at once")

    data = Pieces(b'"' + b",\\\\" * body_limits.PIECE_BYTES + b'"')
    assert not body_limits._is_more_outside(data, b",", 1)
