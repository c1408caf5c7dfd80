"""Models of files that clients upload, on a real server: whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import httpx2
import pytest

from quire.checkpoints.embedded import ASSETS, LISTED
from quire.core.errors import ConfigError, ModelLoadError
from quire.store import blobs
from quire.store.manifests import Preset
from quire.store.store import Store
from tools.random_checkpoint import PRESETS, random_checkpoint

ANSWER = "The capital of France is Paris."
PACKAGED = {f"{name}:latest" for name in LISTED}
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(pulling_server, monkeypatch):
    """A client of a server with an empty store, which is this process's, too."""
    process, place = pulling_server
    monkeypatch.setenv("QUIRE_CACHE", str(place.folder / "quire"))
    with httpx2.Client(base_url=process.address, timeout=60) as client:
        client.cache = place.folder / "quire"
        yield client


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def upload(client, data):
    digest = digest_of(data)
    pieces = (data[i : i + 100_000] for i in range(0, len(data), 100_000))
    assert client.post(f"/api/blobs/{digest}", content=pieces).status_code in (200, 201)
    return digest


def text(client, model):
    body = {**QUESTION, "model": model, "stream": False}
    answer = client.post("/api/chat", json=body)
    return answer.json()["message"]["content"] if answer.status_code == 200 else answer.text


def files_of(cache):
    return [path.name for path in (cache / "blobs").glob("*")] if (cache / "blobs").exists() else []


def test_a_gguf_file_becomes_a_model(server, gguf):
    digest = digest_of(gguf)
    assert server.head(f"/api/blobs/{digest}").status_code == 404
    assert server.post(f"/api/blobs/{digest}", content=gguf).status_code == 201
    again = server.post(f"/api/blobs/{digest}", content=gguf)
    assert (again.status_code, again.content) == (200, b"")
    assert server.head(f"/api/blobs/{digest.replace(':', '-')}").status_code == 200
    made = {"model": "mine", "files": {"tiny.gguf": digest}, "system": "Be brief."}
    lines = server.post("/api/create", json=made).text.splitlines()
    assert [json.loads(line)["status"] for line in lines][-1] == "success"
    tags = {model["name"]: model for model in server.get("/api/tags").json()["models"]}
    assert tags["mine:latest"]["details"]["format"] == "gguf"
    assert tags["mine:latest"]["size"] == len(gguf)
    assert text(server, "mine") == ANSWER
    assert server.request("DELETE", "/api/delete", json={"model": "mine"}).status_code == 200
    assert files_of(server.cache) == [], "its file is no other's"
    assert server.head(f"/api/blobs/{digest}").status_code == 404


def test_a_folder_becomes_a_model(server):
    folder = ASSETS / "quire-tiny"
    files = {
        path.name: upload(server, path.read_bytes()) for path in folder.iterdir() if path.is_file()
    }
    made = {"model": "mine", "files": files, "stream": False}
    assert server.post("/api/create", json=made).json() == {"status": "success"}
    assert text(server, "mine") == ANSWER
    copy = {"source": "mine", "destination": "copy"}
    assert server.post("/api/copy", json=copy).status_code == 200
    assert server.request("DELETE", "/api/delete", json={"model": "mine"}).status_code == 200
    assert text(server, "copy") == ANSWER
    assert server.request("DELETE", "/api/delete", json={"model": "copy"}).status_code == 200
    assert files_of(server.cache) == [] and list((server.cache / "uploads").iterdir()) == []


def test_what_is_wrong_is_said_and_nothing_stays(server, gguf):
    other = digest_of(b"other")
    wrong = server.post(f"/api/blobs/{other}", content=gguf)
    assert wrong.status_code == 400 and "digest mismatch" in wrong.json()["error"]
    for digest in ("sha256:12", "md5:" + "0" * 32, "sha256:" + "g" * 64):
        answer = server.post(f"/api/blobs/{digest}", content=b"x")
        assert answer.status_code == 400 and "invalid digest format" in answer.json()["error"]
        assert server.head(f"/api/blobs/{digest}").status_code == 400
    assert files_of(server.cache) == []
    text_file, whole = upload(server, b"no model"), upload(server, gguf)
    for files, reason in (
        ({"a.gguf": text_file}, "not in GGUF format"),
        ({"a.gguf": other}, "must be uploaded"),
        ({"../a.gguf": whole}, "must be relative"),
        ({"/etc/a.gguf": whole}, "must be relative"),
        ({"a.gguf": whole, "b.gguf": whole}, "must come alone"),
        ({"a.txt": whole}, "config.json"),
        ({"a.gguf": "x"}, "invalid digest format"),
        ({}, "neither"),
    ):
        answer = server.post("/api/create", json={"model": "x", "files": files})
        assert answer.status_code == 400 and reason in answer.json()["error"], answer.text
    both = {"model": "x", "from": "quire-tiny", "files": {"a.gguf": whole}}
    assert server.post("/api/create", json=both).status_code == 400
    assert {m["name"] for m in server.get("/api/tags").json()["models"]} == PACKAGED


def test_a_client_that_leaves_leaves_nothing(server, gguf):
    url = urlsplit(str(server.base_url))
    with socket.create_connection((url.hostname, url.port)) as connection:
        head = f"POST /api/blobs/{digest_of(gguf)} HTTP/1.1\r\nhost: {url.netloc}\r\n"
        connection.sendall(f"{head}content-length: {len(gguf)}\r\n\r\n".encode() + gguf[:2_000_000])
        end = time.monotonic() + 60
        while not files_of(server.cache):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert all(name.endswith(".part") for name in files_of(server.cache))
    end = time.monotonic() + 60
    while files_of(server.cache):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_another_process_makes_and_removes_appears_and_goes(server, tmp_path):
    def quire(*arguments):
        command = [sys.executable, "-m", "quire.cli.main", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def names():
        return {model["name"] for model in server.get("/api/tags").json()["models"]}

    def loaded():
        return {model["name"] for model in server.get("/api/ps").json()["models"]}

    preset = tmp_path / "preset.toml"
    preset.write_text('base = "quire-tiny"\n[sampling]\nmax_tokens = 1\n')
    quire("create", "mine", "--file", str(preset))
    assert names() == {*PACKAGED, "mine:latest"}
    first = text(server, "mine")
    assert 0 < len(first) < len(ANSWER) and "mine:latest" in loaded()
    preset.write_text('base = "quire-tiny"\n')
    quire("create", "mine", "--file", str(preset))
    assert text(server, "mine") == ANSWER
    quire("rm", "mine")
    assert names() == PACKAGED
    assert "not found" in text(server, "mine")
    end = time.monotonic() + 60
    while "mine:latest" in loaded():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_nothing_is_published(server):
    answer = server.post("/api/push", json={"model": "quire-tiny"})
    assert answer.status_code == 501 and "no registry" in answer.json()["error"]
    assert server.post("/api/push", json={"model": "none"}).status_code == 404


def test_a_page_of_another_origin_may_not_upload(server, gguf):
    headers = {"origin": str(server.base_url), "content-type": "text/plain"}
    answer = server.post(f"/api/blobs/{digest_of(gguf)}", content=gguf, headers=headers)
    assert answer.status_code == 415


def test_a_full_disk_is_said_before_and_while_a_file_comes(cache, monkeypatch):
    with pytest.raises(ModelLoadError, match="to come and .* free"):
        blobs.BlobWriter("0" * 64, 1 << 60)
    with blobs.BlobWriter("0" * 64) as writer:

        def full(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(writer._file, "write", full, raising=False)
        with pytest.raises(ModelLoadError, match="No space left.*Make room"):
            writer.write(b"x")
    assert files_of(cache) == []


def test_a_file_beyond_the_limit_is_refused(cache, monkeypatch):
    monkeypatch.setattr(blobs, "MAX_BLOB_BYTES", 10)
    with blobs.BlobWriter("0" * 64) as writer, pytest.raises(ConfigError, match="at most"):
        writer.write(b"x" * 11)
    assert files_of(cache) == []


def test_uploads_that_no_model_uses_go_after_a_day(cache, gguf):
    def put(data):
        digest = hashlib.sha256(data).hexdigest()
        with blobs.BlobWriter(digest, len(data)) as writer:
            writer.write(data)
            return digest, writer.finish()

    old, young, used = put(b"old"), put(b"young"), put(gguf)
    Store().create_from_files("mine", {"a.gguf": f"sha256:{used[0]}"}, Preset())
    for _, path in (old, used):
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    Store().remove_unused_blobs()
    assert not old[1].exists() and young[1].exists() and used[1].exists()


def test_a_model_that_is_removed_meanwhile_holds_up_no_other_s_removal(
    cache, tmp_path, monkeypatch
):
    """Its folder was looked into after it had been listed, and the files of both stayed."""
    store = Store()
    for seed, name in enumerate(("mine", "other")):
        files = {}
        random_checkpoint(tmp_path / name, PRESETS["tiny-llama"], seed=seed)
        for path in (tmp_path / name).iterdir():
            data = path.read_bytes() + b"\n" * seed * (path.suffix != ".safetensors")
            digest = hashlib.sha256(data).hexdigest()
            with blobs.BlobWriter(digest, len(data)) as writer:
                writer.write(data)
                writer.finish()
            files[path.name] = f"sha256:{digest}"
        store.create_from_files(name, files, Preset())
    listed = [model for model in store.list() if model.name != "mine"]
    store.remove("other")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "list", lambda self: listed)
        assert store.remove("mine").freed_bytes > 0
    assert not {model.name for model in store.list()} & {"mine", "other"}
