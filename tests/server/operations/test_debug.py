"""What people see of the KV cache while requests run."""

from __future__ import annotations

import re

import httpx2


def test_block_tables_of_live_requests(live):
    """40 tokens fill 3 blocks; block ``i`` of a table holds its tokens ``16 i`` on."""
    body = {"prompt": [65] * 40, "max_tokens": 32000, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{live.url}/v1/completions", json=body) as response:
        live.wait_until_running(1)
        name = response.headers["x-request-id"]
        answer = live.http.get("/debug/kv_cache")
    assert answer.headers["content-type"].startswith("text/plain")
    pool, table, integrity = answer.text.splitlines()
    assert re.match(r"\d+ blocks of 16 slots: \d+ used, \d+ free, 1 null; ", pool)
    assert re.match(
        rf"cmpl-{name}-\S+ \(\d+ tokens\): \[\d+: 0-15\] \[\d+: 16-31\] \[\d+: 32-\d+\]", table
    )
    assert integrity == "integrity: ok"
    live.wait_until_idle()
    pool, _ = live.http.get("/debug/kv_cache").text.splitlines()
    assert " 0 used, " in pool
