"""After a reset no request finds what was computed before; running ones continue undisturbed."""

from __future__ import annotations

import httpx2
import pytest

from quire.server.access.authentication import scope_of

BODY = {"prompt": [66] * 100, "max_tokens": 1, "temperature": 0}


def cached_tokens(live):
    usage = live.http.post("/v1/completions", json=BODY).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_nothing_is_found_any_more(live):
    cached_tokens(live)
    assert cached_tokens(live) == 96
    answer = live.http.post("/reset_prefix_cache")
    assert (answer.status_code, answer.content) == (200, b"")
    assert cached_tokens(live) == 0
    assert cached_tokens(live) == 96
    assert scope_of("/reset_prefix_cache") == "admin"


def test_those_under_way_keep_their_blocks(live):
    body = {**BODY, "max_tokens": 32000, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{live.url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert live.http.post("/reset_prefix_cache").status_code == 200
        assert cached_tokens(live) == 0
        for _ in range(100):
            assert "error" not in next(lines)
        assert "integrity: ok" in live.http.get("/debug/kv_cache").text
    live.wait_until_idle()
    assert "integrity: ok" in live.http.get("/debug/kv_cache").text


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_it_must_be_posted(client, method):
    assert client.request(method, "/reset_prefix_cache").status_code == 405
