"""nginx itself in front of a server, with the configuration of ``deploy/``."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.ports import free_ports
from tests.server.conftest import ScriptedEngine, run_in_thread

CONFIGURATION = Path(__file__).parents[2] / "deploy/nginx/quire.conf"
NAME = "llm.example.org"
#: As in Debian's nginx.conf, all of it in one folder and for any user.
AROUND = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/quire.conf;
}}
"""


@pytest.fixture(scope="module")
def nginx() -> str:
    """Return the program's path; Debian keeps it where only root looks."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    return program


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the configuration for real ports and a real certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN={NAME} -addext"
    subprocess.run(
        [*command.split(), "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )

    def configuration(port: int = 8443, upstream: str = "127.0.0.1:8000") -> Path:
        changes = {
            "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
            "127.0.0.1:8000": upstream,
            f"/etc/ssl/{NAME}.pem": str(certificate),
            f"/etc/ssl/{NAME}.key": str(key),
        }
        text = CONFIGURATION.read_text()
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / "quire.conf").write_text(text)
        path = tmp_path / "nginx.conf"
        # Workers of root's would be another user, who has no way into root's folder.
        user = "user root;" if os.geteuid() == 0 else ""
        path.write_text(user + AROUND.format(folder=tmp_path))
        return path

    return configuration


@pytest.fixture
def through(
    nginx: str, write: Callable[..., Path], engine: ScriptedEngine, tmp_path: Path
) -> Iterator[httpx2.Client]:
    """A client of a scripted server, through nginx."""
    options = ServerOptions(port=0, uvicorn_log_level="warning", allowed_hosts=(NAME,))
    port = free_ports()
    with run_in_thread(Service(engine, EngineConfig(), Shared(options))) as url:
        path = write(port, url.removeprefix("http://"))
        process = subprocess.Popen([nginx, "-e", tmp_path / "error.log", "-c", path])
        context = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
        try:
            end = time.monotonic() + 60
            while not (tmp_path / "pid").exists():
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.01)
            base = f"https://127.0.0.1:{port}"
            settings = {"verify": context, "headers": {"host": NAME}, "timeout": 60}
            with httpx2.Client(base_url=base, **settings) as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def check(nginx: str, path: Path) -> tuple[int, str]:
    """Return what ``nginx -t`` says."""
    log = path.parent / "first.log"
    done = subprocess.run([nginx, "-t", "-e", log, "-c", path], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_the_configuration_is_accepted(nginx, write):
    path = write()
    code, text = check(nginx, path)
    assert code == 0 and "[warn]" not in text, text
    copied = path.parent / "quire.conf"
    copied.write_text(copied.read_text().replace("proxy_buffering off;", "proxy_buffering of;"))
    code, text = check(nginx, path)
    assert code == 1 and "proxy_buffering" in text


def test_a_stream_is_passed_on_at_once(through, engine):
    engine.text, engine.hold_after = "ABC", 1
    body = {"prompt": "a", "stream": True}
    with through.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert '"text":"A"' in next(lines)
        assert not engine.released.is_set()
        engine.released.set()
        assert "data: [DONE]" in list(lines)


def test_a_client_that_leaves_ends_its_request(through, engine):
    engine.text, engine.hold_after = "ABC", 1
    body = {"prompt": "a", "stream": True}
    with through.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    end = time.monotonic() + 60
    while not engine.ended:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert engine.ended == ["closed"] and not engine.open_requests


def test_errors_and_names_come_through(through):
    refused = through.post("/v1/completions", json={"prompt": "a", "max_tokens": -1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_tokens"
    assert through.get("/metrics").is_success
    assert through.get("/health", headers={"host": "other.example"}).status_code == 403
    body = b'{"prompt": "' + b"x" * (33 * 2**20 - 100) + b'"}'
    json_type = {"content-type": "application/json"}
    too_large = through.post("/v1/completions", content=body, headers=json_type)
    assert too_large.status_code == 413 and too_large.json()["error"]["message"]
