"""A hub and a Python index on loopback: as much of their HTTP as downloads use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubStandIn:
    """What is served, and what was asked for.

    Attributes:
        repositories: Files of each repository; those that end with .gguf are redirected, as large
            files of the hub are.
        wheels: Files of the index by package and name.
        cuts: Files whose first transfer ends after that many bytes.
        statuses: Answers with which transfers of a file are refused, one after the other.
        bodies: Files that are sent with other bytes than were announced.
        sizes: What is told of a file's size before it is asked for.
        architecture: Of the GGUF files, as the hub reads it; empty for none.
        endless: Files whose body is not announced and goes on for ever.
        listing: Sent for ever in place of each list of files, in pieces with that many seconds
            between them.
        num_listed: Files that are listed besides those of a repository.
        loops: Files whose transfer is redirected to itself.
        etags: Files that are announced by another hash.
        wholes: Files that are sent from their beginning, whatever part was asked for.
        encodings: What a file's transfer says its bytes are encoded by.
        commit: Of each repository's main branch.
        pause: Seconds between pieces of 1,000 bytes; 0 sends all at once.
        slow_after: Bytes of a transfer after which 20 pieces a second come, as long as it is set.
        requests: (method, path, Range header) of each request.
        tokens: The Authorization header that came last with each path.
    """

    repositories: dict[str, dict[str, bytes]]
    wheels: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    architecture: str = ""
    endless: set[str] = field(default_factory=set)
    listing: tuple[bytes, float] | None = None
    num_listed: int = 0
    loops: set[str] = field(default_factory=set)
    etags: dict[str, str] = field(default_factory=dict)
    wholes: set[str] = field(default_factory=set)
    encodings: dict[str, str] = field(default_factory=dict)
    commit: str = COMMIT
    pause: float = 0.0
    slow_after: int | None = None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: dict[str, str | None] = field(default_factory=dict)
    url: str = ""

    def settings(self, folder: Path) -> dict[str, str]:
        """Return the environment of a process that has it as its hub, caches in ``folder``."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HUB_OFFLINE": "",  # other tests set it for libraries of their own
            "NO_PROXY": "*",
            "HF_HOME": str(folder / "hub"),
            "HF_HUB_CACHE": str(folder / "hub"),
            "QUIRE_CACHE": str(folder / "quire"),
        }

    def fetched(self) -> set[str]:
        """Return the names of files whose content was asked for."""
        paths = [path for method, path, _ in self.requests if method == "GET"]
        return {path.rpartition("/")[2] for path in paths if "/cdn/" in path or "/resolve/" in path}


@contextmanager
def serving(hub: HubStandIn) -> Iterator[HubStandIn]:
    """Answer for ``hub`` on a free port until the end of the block."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    # It looks that often whether it shall end.
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: HubStandIn

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self._answer(404, b"{}")

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.served.requests.append((self.command, path, self.headers["Range"]))
        self.served.tokens[path] = self.headers["Authorization"]
        match path.strip("/").split("/"):
            case ["api", "models", owner, name, *rest] if (
                files := self.served.repositories.get(f"{owner}/{name}")
            ) is not None:
                self._list(f"{owner}/{name}", files, is_tree="tree" in rest)
            case [owner, name, "resolve", r, *parts] if r in (self.served.commit, "main"):
                self._resolve(f"{owner}/{name}", "/".join(parts))
            case ["cdn", owner, name, *parts]:
                self._send_file("/".join(parts), self.served.repositories[f"{owner}/{name}"])
            case ["simple", package] if package in self.served.wheels:
                links = (
                    f'<a href="/wheels/{package}/{f}">{f}</a>' for f in self.served.wheels[package]
                )
                self._answer(200, "".join(links).encode(), {"Content-Type": "text/html"})
            case ["wheels", package, name]:
                self._send_file(name, self.served.wheels[package])
            case _:
                self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _list(self, repository: str, files: dict[str, bytes], *, is_tree: bool) -> None:
        if self.served.listing is not None:
            self._send_endless(*self.served.listing)
            return
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": etag(data, name)}
            for name, data in files.items()
        ]
        siblings: list[dict[str, object]] = [{"rfilename": name} for name in files]
        if "blobs=" in self.path:
            for entry in siblings:
                name = str(entry["rfilename"])
                entry["size"] = self.served.sizes.get(name, len(files[name]))
        siblings += ({"rfilename": f"f{i}", "size": 1} for i in range(self.served.num_listed))
        info = {"id": repository, "sha": self.served.commit, "siblings": siblings}
        if self.served.architecture:
            info["gguf"] = {"architecture": self.served.architecture}
        self._answer(200, json.dumps(tree if is_tree else info).encode())

    def _resolve(self, repository: str, name: str) -> None:
        data = self.served.repositories.get(repository, {}).get(name)
        if data is None:
            self._answer(
                404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.served.commit}
            )
        elif name.endswith(".gguf"):
            announced = self.served.etags.get(name, etag(data, name))
            linked = {"X-Linked-Etag": f'"{announced}"', "X-Linked-Size": str(len(data))}
            # Another host, as the hub's.
            cdn = self.served.url.replace("127.0.0.1", "localhost")
            location = {"Location": f"{cdn}/cdn/{repository}/{name}"}
            self._answer(302, b"", {"X-Repo-Commit": self.served.commit, **linked, **location})
        else:
            self._send_file(name, {name: data})

    def _send_file(self, name: str, files: dict[str, bytes]) -> None:
        data = files[name]
        if self.command == "GET" and self.served.statuses.get(name):
            self._answer(self.served.statuses[name].pop(0), b"")
            return
        if name in self.served.loops:
            self._answer(302, b"", {"Location": self.path})
            return
        begin = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if name in self.served.wholes:
            begin = 0
        headers = {"ETag": f'"{etag(data, name)}"', "Accept-Ranges": "bytes"}
        if name in self.served.encodings:
            headers["Content-Encoding"] = self.served.encodings[name]
        headers["X-Repo-Commit"] = self.served.commit
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        if name in self.served.endless:
            self._send_endless()
            return
        cut = self.served.cuts.pop(name, None) if self.command == "GET" else None
        sent = (self.served.bodies.get(name, data) if self.command == "GET" else data)[begin:]
        self._answer(206 if begin else 200, sent, headers, cut)

    def _send_endless(self, piece: bytes = bytes(10_000), seconds: float = 0.0) -> None:
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            while self.command == "GET":
                self.wfile.write(piece)
                time.sleep(seconds)

    def _answer(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self._write(data[:cut])
        if cut is not None:
            self.close_connection = True

    def _write(self, data: bytes) -> None:
        if not self.served.pause and self.served.slow_after is None:
            self.wfile.write(data)
            return
        with contextlib.suppress(OSError):
            for at in range(0, len(data), 1000):
                self.wfile.write(data[at : at + 1000])
                slow_after = self.served.slow_after
                is_slow = slow_after is not None and at >= slow_after
                time.sleep(0.05 if is_slow else self.served.pause)

    def log_message(self, *_: object) -> None:
        pass


def etag(data: bytes, name: str) -> str:
    """Return the name of a content: its SHA-256 for a large file."""
    hashed = hashlib.sha256 if name.endswith(".gguf") else hashlib.sha1
    return hashed(data).hexdigest()
