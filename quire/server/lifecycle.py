"""A server from its first second to its last: it listens, loads, serves, drains."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import HANDLED_SIGNALS

from quire.core.errors import ConfigError
from quire.llm.load_state import Loading
from quire.server.access.authentication import OPEN_PATHS
from quire.server.http.body import MAX_BODY_BYTES
from quire.server.http.connection_rules import (
    ConnectionRules,
    ProtocolConfig,
    default_max_connections,
)
from quire.server.http.host_rule import HostRule
from quire.server.http.protocol import HttpProtocol
from quire.server.http.unread_answers import UnreadAnswers
from quire.server.http.websocket_protocol import WebSocketProtocol
from quire.server.server_options import ServerOptions
from quire.system.background_stream import wait_until_logged
from quire.system.log import get_logger, library_config

if TYPE_CHECKING:  # it imports the engine, and the first second comes before that
    from quire.server.generation.served_models import ManagedModels

log = get_logger(__name__)

KEEP_ALIVE_SECONDS = 60
#: Time for aborted requests to send their error before connections are cut.
SHUTDOWN_GRACE_SECONDS = 5
#: Between two looks whether the last request has ended.
POLL_SECONDS = 0.02
#: Seconds for the engine to end when its model is not wanted any more.
CANCEL_SECONDS = 5.0
#: For all that follows the last request: engines end, threads are joined.
END_SECONDS = 15.0
#: Between two looks whether the server is to end.
LOOK_SECONDS = 0.5
#: Ticks of uvicorn, a tenth of a second each, between two looks for clients that do not read.
LOOK_TICKS = 10


@dataclass(frozen=True, slots=True)
class LoadModels:
    """The work of a server before it serves.

    Attributes:
        create: The function that loads the models; called in a thread of its own.
        app: The app that answers meanwhile.
        loading: The progress; cancelled when the server is to end before the model is loaded.
    """

    create: Callable[[], tuple[ManagedModels, ASGIApp]]
    app: ASGIApp
    loading: Loading


class Server(uvicorn.Server):
    """uvicorn with our own start and end.

    It listens at once, and answers that it is loading until the model is loaded. On SIGTERM or
    SIGINT it refuses new requests, lets running ones finish for ``shutdown_timeout`` seconds, then
    stops the engine, which ends the rest with an error that clients can read. It listens until
    then: a client that connects meanwhile gets a 503 with a time to try again.

    Args:
        options: The server's settings.
        ready: The models and their app, or the work that leads to them.
        announce: The function that is called once, with the models, when requests are accepted.

    Attributes:
        error: The reason why the model could not be loaded.
    """

    def __init__(
        self,
        options: ServerOptions,
        ready: tuple[ManagedModels, ASGIApp] | LoadModels,
        announce: Callable[[ManagedModels], None] = lambda models: None,
    ) -> None:
        limit = options.max_connections
        self._rules = ConnectionRules(
            max_connections=default_max_connections() if limit is None else limit,
            probe_paths=OPEN_PATHS,
        )
        self._options = options
        self._announce = announce
        self._unread = UnreadAnswers(options.write_timeout)
        self._models: ManagedModels | None = None
        self._load: LoadModels | None = ready if isinstance(ready, LoadModels) else None
        self._loader = threading.Thread(target=self._run_load, name="quire-load", daemon=True)
        self._ready = None if isinstance(ready, LoadModels) else ready
        self.error: BaseException | None = None
        app: Any = ready.app if isinstance(ready, LoadModels) else ready[1]
        settings = _settings(options, app, self._rules)
        # uvicorn and its connections keep this layer; the app in it changes when it is loaded.
        self._outer = ProxyHeadersMiddleware(app, settings.forwarded_allow_ips)
        settings.app = self._outer
        super().__init__(settings)

    @property
    def longest_end(self) -> float:
        """Seconds from a signal to the end of the process, at most."""
        return self._options.shutdown_timeout + SHUTDOWN_GRACE_SECONDS + END_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then load."""
        options = self._options
        self._rules.hosts = HostRule.create(
            options.allowed_hosts, options.allowed_origins, options.host, sockets or ()
        )
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self._ready is not None:
            self._serve_requests(*self._ready)
        else:
            self._loader.start()

    async def on_tick(self, counter: int) -> bool:
        """Look after the connections."""
        if self._options.write_timeout and counter % LOOK_TICKS == 0 and self._models is not None:
            self._models.shared.metrics.num_unread += self._unread.cut(
                list(self.server_state.connections)
            )
        return await super().on_tick(counter)

    def _run_load(self) -> None:
        """Load, in a thread."""
        assert self._load is not None
        try:
            then: tuple[Callable[..., None], Any] = self._serve_requests, self._load.create()
        except BaseException as error:
            then = self._fail, (error,)
        with suppress(RuntimeError):  # the loop has ended, and the process is about to
            self._loop.call_soon_threadsafe(then[0], *then[1])

    def _fail(self, error: BaseException) -> None:
        if self._load is not None and not self._load.loading.cancelled:
            self.error = error
        self.should_exit = True

    def _serve_requests(self, models: ManagedModels, app: ASGIApp) -> None:
        """Answer with ``app`` from now on, also on the connections that are open already."""
        self._models = models
        rejections = models.shared.rejections
        rejections.update(self._rules.rejections)
        self._rules.rejections = rejections
        self._outer.app = cast(Any, app)  # uvicorn has types of its own for the same calls
        if not self.should_exit:
            self._announce(models)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, within bounds, and stop the engine."""
        await self._end_load()
        models = self._models
        if models is None:
            self.config.timeout_graceful_shutdown = SHUTDOWN_GRACE_SECONDS
            await super().shutdown(sockets)
        else:
            await self._drain(models, sockets)
        # uvicorn would raise the signal again, and a drained server has not failed.
        self._captured_signals.clear()

    async def _end_load(self) -> None:
        """Give up loading a model, if one is being loaded."""
        if self._load is not None and self._models is None:
            self._load.loading.cancelled = True
            await asyncio.to_thread(self._loader.join, CANCEL_SECONDS)
            await asyncio.sleep(0)  # what it called for is done by now

    async def _drain(self, models: ManagedModels, sockets: list[socket.socket] | None) -> None:
        end = time.monotonic() + self._options.shutdown_timeout
        models.drain()
        ending = asyncio.create_task(self._end_late_requests(models))
        try:
            for connection in list(self.server_state.connections):
                if isinstance(connection, WebSocketProtocol):
                    connection.shutdown()
            while models.shared.metrics.num_in_flight and not (ending.done() or self.force_exit):
                await asyncio.sleep(POLL_SECONDS)
            rest = max(0.0, end - time.monotonic()) + SHUTDOWN_GRACE_SECONDS
            self.config.timeout_graceful_shutdown = math.ceil(rest)
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await models.end_requests()
            await models.shared.shutdown()

    async def _end_late_requests(self, models: ManagedModels) -> None:
        await asyncio.sleep(self._options.shutdown_timeout)
        await models.end_requests()


def _settings(options: ServerOptions, app: Any, rules: ConnectionRules) -> ProtocolConfig:
    """Return uvicorn's settings."""
    level = options.uvicorn_log_level
    return ProtocolConfig(
        app,
        rules,
        http=HttpProtocol,
        lifespan="off",
        proxy_headers=False,  # a layer of our own reads them
        ws=WebSocketProtocol,
        ws_max_size=MAX_BODY_BYTES,
        ws_per_message_deflate=False,  # a small frame would become hundreds of megabytes
        root_path=options.root_path,
        log_level=level,
        log_config=library_config(options.log_format, "uvicorn", level.upper()),
        access_log=False,  # the request log has a line for each, with more in it
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        server_header=False,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        ssl_ca_certs=options.ssl_ca_certs,
        ssl_cert_reqs=ssl.CERT_REQUIRED if options.ssl_ca_certs else ssl.CERT_NONE,
    )


def run_server(server: Server, listener: socket.socket, uds: str | None = None) -> None:
    """Serve until a signal, which :func:`handle_signals` passes to the server, then drain.

    Args:
        server: The server to run.
        listener: The socket that it listens on.
        uds: The Unix socket's path, removed at the end.

    Raises:
        ConfigError: Another process has taken the address since it was bound.
        QuireError: The model could not be loaded.
    """
    watch = threading.Thread(target=_end_in_time, args=(server, uds), name="quire-end", daemon=True)
    watch.start()
    try:
        server.run(sockets=[listener])
    except OSError as error:
        raise ConfigError(f"[serve] the address must be free to listen on; got {error}.") from error
    finally:
        # Python's own end would put the default back for any handler but this one.
        handle_signals(signal.SIG_IGN)
        if uds is not None and os.path.exists(uds):
            os.unlink(uds)
    if server.error is not None:
        raise server.error


def _end_in_time(server: Server, uds: str | None) -> None:
    """End this process some time after it was told to end, whatever its threads wait for.

    A thread that hangs in a call of the system, at a broken disk for one, is joined for ever.
    """
    while not server.should_exit:
        time.sleep(LOOK_SECONDS)
    time.sleep(server.longest_end)
    names = sorted(thread.name for thread in threading.enumerate() if not thread.daemon)
    log.error("[serve] not ended in %g s, so by force; at work: %s", server.longest_end, names)
    wait_until_logged()
    if uds is not None:
        with suppress(OSError):
            os.unlink(uds)
    os._exit(1)


def handle_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Set the handler of the signals that end a server, before one runs and after it.

    uvicorn restores the handlers that it found. By default these kill the process, which a second
    signal at the end must not do.
    """
    for number in HANDLED_SIGNALS:
        signal.signal(number, handler)
