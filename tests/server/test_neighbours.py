"""Whatever others send, a running request gets exactly what it gets alone."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]
#: (path, body, status); each is wrong in its own way.
WRONG = [
    (TEXT, b'{"prompt": ', 400),
    (TEXT, b'{"prompt": "\xff\xfe"}', 400),
    (TEXT, b'{"prompt": "\\ud800"}', 400),
    (TEXT, {"prompt": ""}, 400),
    (TEXT, {"prompt": []}, 400),
    (TEXT, {"prompt": ["fine", ""]}, 400),
    (TEXT, {"prompt": [10**6]}, 400),
    (TEXT, {"prompt": "x" * 40000}, 400),
    (TEXT, {"prompt": "x", "max_tokens": 32768}, 400),
    (TEXT, {"prompt": "x", "temperature": -1}, 400),
    (TEXT, {"prompt": "x", "n": 17}, 400),  # more than --max-num-seqs
    (TEXT, {"prompt": "x", "n": 129}, 400),
    (TEXT, {"prompt": "x", "model": "other"}, 404),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": HELLO, "top_p": 2}, 400),
    (CHAT, {"messages": HELLO, "logit_bias": {"a": 1}}, 400),
]


def leave_at_once(url):
    """Ask for a long stream and go away after its first bytes."""
    address = httpx2.URL(url)
    content = json.dumps({"prompt": "b", "max_tokens": 32000, "ignore_eos": True, "stream": True})
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_wrong_requests_and_clients_that_leave_harm_no_other(live):
    body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "seed": 1, "logprobs": 1}
    expected = live.http.post(TEXT, json=body).json()["choices"]
    done = threading.Event()

    def ask_on_and_on():
        answers = []
        with httpx2.Client(base_url=live.url, timeout=60) as other:
            while not done.is_set() or not answers:
                answers.append(other.post(TEXT, json=body).json()["choices"])
        return answers

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask_on_and_on)
        try:
            live.wait_until_running(1)
            for path, wrong, status in WRONG:
                content = wrong if isinstance(wrong, bytes) else json.dumps(wrong)
                headers = {"content-type": "application/json"}
                answer = live.http.post(path, content=content, headers=headers)
                assert answer.status_code == status, (wrong, answer.text)
                assert answer.json()["error"]["message"].count("\n") == 0
            leave_at_once(live.url)
        finally:
            done.set()
        assert all(choices == expected for choices in running.result())
    live.wait_until_idle()
