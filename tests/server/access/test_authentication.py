"""Keys, scopes, origins and TLS."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
from hmac import compare_digest

import httpx2
import pytest

from quire.core.errors import ConfigError
from quire.server.access.authentication import OPEN_PATHS, SCOPES, read_key_file, scope_of
from quire.server.app import create_app
from quire.server.generation.served_models import OneModel
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.listener import address
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.conftest import run_in_thread

CALLS = {
    "infer": ("POST", "/v1/completions", {"prompt": "a"}),
    "read": ("GET", "/metrics", None),
    "admin": ("GET", "/debug/kv_cache", None),
}


def call(client, scope: str, key: str) -> int:
    method, path, body = CALLS[scope]
    headers = {"authorization": f"Bearer {key}"}
    return client.request(method, path, json=body, headers=headers).status_code


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\n\nkey-i infer\nkey-r read\nkey-a admin\nkey-ir infer,read\n")
    return str(path)


def test_each_key_opens_what_its_scopes_say(engine, key_file):
    options = ServerOptions(port=0, api_key=("all", "all-2"), uvicorn_log_level="warning")
    service = Service(engine, EngineConfig(), Shared(options, tuple(read_key_file(key_file))))
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        for key, allowed in (
            ("key-i", {"infer"}), ("key-r", {"read"}), ("key-a", {"admin"}),
            ("key-ir", {"infer", "read"}), ("all", set(SCOPES)), ("all-2", set(SCOPES)),
        ):  # fmt: skip
            for scope in SCOPES:
                expected = 200 if scope in allowed else 403
                assert call(client, scope, key) == expected, (key, scope)
        assert call(client, "infer", "key") == 401
        answer = client.get("/metrics", headers={"authorization": "Bearer key-i"})
        assert answer.json()["error"]["type"] == "PermissionDeniedError"


def test_a_file_may_hold_hashes_of_keys(engine, tmp_path):
    path = tmp_path / "keys"
    digits = hashlib.sha256(b"key-i").hexdigest()
    path.write_text(f"sha256:{digits} infer name=a\nsha256:{digits[::-1].upper()} read\n")
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    service = Service(engine, EngineConfig(), Shared(options, tuple(read_key_file(str(path)))))
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        assert call(client, "infer", "key-i") == 200
        assert call(client, "read", "key-i") == 403
        assert call(client, "infer", f"sha256:{digits}") == 401, "the file's words open nothing"


def test_every_key_is_compared_in_constant_time(engine, monkeypatch, key_file):
    """By ``hmac.compare_digest``, and all of them whichever matches."""
    seen = []

    def compare(a, b):
        seen.append((a, b))
        return compare_digest(a, b)

    monkeypatch.setattr("quire.server.access.authentication.hmac.compare_digest", compare)
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    service = Service(engine, EngineConfig(), Shared(options, tuple(read_key_file(key_file))))
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        for key in ("key-i", "none"):
            seen.clear()
            given = hashlib.sha256(key.encode()).digest()
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                seen.clear()
                client.get("/v1/models", headers=headers)
                assert seen == [(given, stored.digest) for stored in service.shared.keys]


def test_the_scheme_s_case_and_spaces_do_not_matter(serve):
    client = serve(api_key="k-1")
    for given, status in (
        ("Bearer k-1", 200), ("bearer k-1", 200), ("BEARER  k-1", 200), ("Bearer K-1", 401),
        ("Basic k-1", 401), ("Bearerk-1", 401), ("k-1", 401), ("Bearer", 401),
        ("Bearer k-1 x", 401),
    ):  # fmt: skip
        answer = client.get("/version", headers={"authorization": given})
        assert answer.status_code == status, given


def test_every_route_is_closed_unless_it_is_health(engine):
    options = ServerOptions(port=0, api_key="k", uvicorn_log_level="warning", playground=False)
    service = Service(engine, EngineConfig(), Shared(options))
    routes = create_app(OneModel(service)).app.app.routes
    assert {route.path for route in routes} >= OPEN_PATHS
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        for route in routes:
            for method in getattr(route, "methods", None) or {"POST"}:
                status = client.request(method, route.path).status_code
                assert (status != 401) == (route.path in OPEN_PATHS), route.path
    # A path that no rule names needs the highest scope.
    assert scope_of("/v1/new") == scope_of("/health/") == "admin"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# none\n",
        "secret\n",
        "secret infer,write\n",
        "secret infer read\n",
        "sécret infer\n",
        "sha256:5ec4e7secret infer\n",
        f"sha256:{'0' * 63} infer\n",
    ],
)
def test_a_wrong_key_file_is_refused_without_its_secrets(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match="--api-key-file") as caught:
        read_key_file(str(path))
    assert "secret" not in str(caught.value).replace(str(path), "")


def test_a_missing_key_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_key_file(str(tmp_path / "none"))


def test_keys_are_not_shown(engine, key_file):
    options = ServerOptions(api_key="hush")
    service = Service(engine, EngineConfig(), Shared(options, tuple(read_key_file(key_file))))
    assert "hush" not in repr(options) + repr(service)
    assert "key-" not in repr(service.shared.keys)
    assert service.options.api_key == (), "only their hashes are kept"
    assert {key.digest for key in service.shared.keys} > {hashlib.sha256(b"hush").digest()}


def test_pages_of_other_origins_may_not_call_unless_told(serve):
    origin = {"origin": "https://page.example"}
    closed = serve()
    assert "access-control-allow-origin" not in closed.get("/health", headers=origin).headers
    client = serve(allowed_origins=("https://page.example",), api_key="k")
    asked = {**origin, "access-control-request-method": "POST",
             "access-control-request-headers": "authorization"}  # fmt: skip
    answer = client.options("/v1/completions", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    refused = client.get("/v1/models", headers=origin)  # a page can read why
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://page.example"
    other = client.get("/health", headers={"origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_tls(engine, tmp_path):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), *names, "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    options = ServerOptions(
        port=0, ssl_certfile=certificate, ssl_keyfile=key, uvicorn_log_level="warning"
    )
    with run_in_thread(Service(engine, EngineConfig(), Shared(options))) as url:
        url = url.replace("http:", "https:")
        context = ssl.create_default_context(cafile=certificate)
        with httpx2.Client(base_url=url, verify=context, timeout=60) as client:
            assert client.get("/health").status_code == 200


def test_the_address_names_the_scheme():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert address(listener, "https").startswith("https://127.0.0.1:")
