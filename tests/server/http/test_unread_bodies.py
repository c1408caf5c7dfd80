"""Bodies that come little by little share one bound, and each key has a part of it."""

from __future__ import annotations

import pytest
from starlette.requests import ClientDisconnect, Request

from quire.server.http import unread_bodies
from quire.server.http.body import read_body
from quire.server.http.http_errors import ApiError
from quire.server.http.unread_bodies import FREE_BYTES, UnreadBodies

PART = FREE_BYTES


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_bodies, "MAX_BYTES", 8 * PART)
    monkeypatch.setattr(unread_bodies, "MAX_KEY_BYTES", 4 * PART)


def request_of(key: object, num_parts: int, *, ends: bool = True) -> Request:
    """Return a request with a body of some parts, which breaks off or ends."""
    left = num_parts

    async def receive() -> dict[str, object]:
        nonlocal left
        left -= 1
        if left < 0:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": bytes(PART), "more_body": left > 0 or not ends}

    return Request({"type": "http", "headers": [], "api_key": key}, receive)


def test_bodies_that_have_not_ended_share_a_bound() -> None:
    """Twelve of 30 MB, each without its last byte, were held whole: 330 MiB."""
    bodies = UnreadBodies()
    with bodies.reading("a") as first, bodies.reading("a") as second:
        first.add(4 * PART)
        second.add(2 * PART)
        with pytest.raises(ApiError, match="too many large bodies") as refused:
            second.add(PART)
        assert refused.value.status == 503
        assert refused.value.headers == {"Retry-After": "1"}
        with bodies.reading("b") as other:
            other.add(4 * PART)
            other.add(PART)
        with bodies.reading("a") as small:
            small.add(FREE_BYTES)
    with bodies.reading("a") as again:
        again.add(4 * PART)


def test_keys_together_have_a_bound_too() -> None:
    bodies = UnreadBodies()
    with bodies.reading("a") as one, bodies.reading("b") as two, bodies.reading("c") as three:
        one.add(5 * PART)
        two.add(5 * PART)
        with pytest.raises(ApiError, match="too many large bodies"):
            three.add(2 * PART)


async def test_a_body_is_counted_until_it_has_ended_however_that_is() -> None:
    for _ in range(20):
        assert len(await read_body(request_of("a", 4))) == 4 * PART
        with pytest.raises(ApiError):
            await read_body(request_of("a", 4), max_bytes=2 * PART)
        with pytest.raises(ClientDisconnect):
            await read_body(request_of("a", 4, ends=False))
