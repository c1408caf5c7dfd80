"""A hub and a Python index on loopback: as much of their HTTP as downloads use."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubStandIn:
    """What is served, and what was asked for.

    Attributes:
        repositories: Files of each repository; those that end with .gguf are redirected, as large
            files of the hub are.
        wheels: Files of the index by package and name.
        cuts: Files whose first transfer ends after that many bytes.
        requests: (method, path, Range header) of each request.
    """

    repositories: dict[str, dict[str, bytes]]
    wheels: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

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
    thread = threading.Thread(target=server.serve_forever)
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

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.served.requests.append((self.command, path, self.headers["Range"]))
        match path.strip("/").split("/"):
            case ["api", "models", owner, name, *rest] if (
                files := self.served.repositories.get(f"{owner}/{name}")
            ) is not None:
                self._list(f"{owner}/{name}", files, is_tree="tree" in rest)
            case [owner, name, "resolve", revision, *parts] if revision in (COMMIT, "main"):
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
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": etag(data)}
            for name, data in files.items()
        ]
        siblings = [{"rfilename": name} for name in files]
        info = {"id": repository, "sha": COMMIT, "siblings": siblings}
        self._answer(200, json.dumps(tree if is_tree else info).encode())

    def _resolve(self, repository: str, name: str) -> None:
        data = self.served.repositories.get(repository, {}).get(name)
        if data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        elif name.endswith(".gguf"):
            linked = {"X-Linked-Etag": f'"{etag(data)}"', "X-Linked-Size": str(len(data))}
            # Another host, as the hub's.
            cdn = self.served.url.replace("127.0.0.1", "localhost")
            location = {"Location": f"{cdn}/cdn/{repository}/{name}"}
            self._answer(302, b"", {"X-Repo-Commit": COMMIT, **linked, **location})
        else:
            tag = {"ETag": f'"{etag(data)}"', "X-Repo-Commit": COMMIT}
            self._answer(200, data, tag)

    def _send_file(self, name: str, files: dict[str, bytes]) -> None:
        data = files[name]
        begin = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        headers = {"ETag": f'"{etag(data)}"', "Accept-Ranges": "bytes"}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        cut = self.served.cuts.pop(name, None) if self.command == "GET" else None
        self._answer(206 if begin else 200, data[begin:], headers, cut)

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
            self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def etag(data: bytes) -> str:
    """Return the name of a content."""
    return hashlib.sha1(data).hexdigest()
