"""A server on a scripted engine that is told to end while its clients wait."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx2

from quire.llm.engine_client import EngineClient
from quire.server.app import create_app
from quire.server.generation.served_models import OneModel
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.lifecycle import Server
from quire.server.listener import address, bind
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig


class Running:
    """A server in a thread; leaving the block waits for its end.

    Args:
        engine: What answers.
        timeout: ``--shutdown-timeout``.

    Attributes:
        url: Where it listens.
        answers: What :meth:`ask` got, by name.
    """

    def __init__(self, engine: EngineClient, timeout: float) -> None:
        options = ServerOptions(port=0, uvicorn_log_level="error", shutdown_timeout=timeout)
        self._listener = bind(options)
        self.url = address(self._listener)
        ready = threading.Event()
        self._service = Service(engine, EngineConfig(), Shared(options))
        models = OneModel(self._service)
        self._server = Server(options, (models, create_app(models)), lambda models: ready.set())
        keywords = {"sockets": [self._listener]}
        self._thread = threading.Thread(target=self._server.run, kwargs=keywords)
        self._thread.start()
        assert ready.wait(60)
        self.answers: dict[str, httpx2.Response] = {}
        self._clients: list[threading.Thread] = []

    def ask(self, name: str, body: dict[str, Any]) -> None:
        """Post to ``/v1/completions`` from a thread."""

        def post() -> None:
            url = f"{self.url}/v1/completions"
            self.answers[name] = httpx2.post(url, json=body, timeout=60)

        self._clients.append(threading.Thread(target=post))
        self._clients[-1].start()

    def begin_to_end(self) -> None:
        """Do what a signal does, and wait until new requests are refused."""
        self._server.should_exit = True
        while not self._service.admission.draining:
            time.sleep(0.005)

    def join(self) -> None:
        """Wait until the clients have their answers and the server has ended."""
        for thread in (*self._clients, self._thread):
            thread.join(40)  # less than the longest --shutdown-timeout of the tests
            assert not thread.is_alive()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self.join()
