"""From a loaded engine to a listening server and back: bind first, drain last."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from typing import Any, NoReturn

import uvicorn

from quire.core.errors import ConfigError
from quire.core.log import library_config
from quire.server.app import create_app
from quire.server.generation.service import Service
from quire.server.http.body import MAX_BODY_BYTES
from quire.server.http.protocol import HttpProtocol
from quire.server.http.websocket_protocol import WebSocketProtocol
from quire.server.options import ServerOptions

KEEP_ALIVE_SECONDS = 60
#: Time for aborted requests to send their error before connections are cut.
SHUTDOWN_GRACE_SECONDS = 5
#: Between two looks whether the last request has ended.
POLL_SECONDS = 0.02


def bind(options: ServerOptions) -> socket.socket:
    """Take the address before anything is loaded; until the server listens nobody can connect.

    Raises:
        ConfigError: It is taken or not permitted, or a file for TLS is not what it should be.
    """
    _check_tls(options)
    try:
        if options.uds is not None:
            _remove_stale_socket(options.uds)
        return _create_listener(options)
    except OSError as error:
        name = options.uds or f"{options.host}:{options.port}"
        raise ConfigError(
            f"[serve] {name} must be free to listen on; got {error.strerror or error}. "
            "Give another --host, --port or --uds, or stop what holds it."
        ) from error


def _check_tls(options: ServerOptions) -> None:
    """Read what uvicorn will read when the model has been loaded."""
    if options.ssl_certfile is None:
        return
    names = "--ssl-certfile and --ssl-keyfile"
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, _no_password)
        if options.ssl_ca_certs is not None:
            names = "--ssl-ca-certs"
            context.load_verify_locations(options.ssl_ca_certs)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(
            f"[serve] {names} must be readable PEM files that belong together, without a "
            f"password; got {error}."
        ) from error


def _no_password() -> NoReturn:
    raise ValueError("a key with a password")  # instead of asking the terminal for it


def _create_listener(options: ServerOptions) -> socket.socket:
    if options.uds is not None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: Any = options.uds
    else:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
        listener, target = socket.socket(found[0][0], socket.SOCK_STREAM), found[0][4]
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale_socket(path: str) -> None:
    """Remove a socket whose server has died."""
    if not os.path.exists(path):
        return
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise ConfigError(f"[serve] --uds must name a socket or nothing; got file {path}.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigError(f"[serve] --uds {path} must not be in use; another server listens there.")


def address(listener: socket.socket, scheme: str = "http") -> str:
    """Return where clients reach ``listener``."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"{scheme}://{host}:{name[1]}"


class Server(uvicorn.Server):
    """uvicorn, with an announcement and an ending of our own.

    On SIGTERM or SIGINT it refuses new requests, lets running ones finish for
    ``shutdown_timeout`` seconds, then stops the engine, which ends the rest with an error they
    can read. It listens until then: a client that comes meanwhile gets a 503 with a time to try
    again.

    Args:
        service: What is served; its engine is shut down at the end.
        announce: Called once, when requests are accepted.
    """

    def __init__(self, service: Service, announce: Callable[[], None]) -> None:
        options = service.options
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=HttpProtocol,
                lifespan="off",
                ws=WebSocketProtocol,
                ws_max_size=MAX_BODY_BYTES,
                root_path=options.root_path,
                log_level=options.uvicorn_log_level,
                log_config=library_config(
                    options.log_format, "uvicorn", options.uvicorn_log_level.upper()
                ),
                access_log=False,  # the request log has a line for each, with more in it
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                server_header=False,
                ssl_certfile=options.ssl_certfile,
                ssl_keyfile=options.ssl_keyfile,
                ssl_ca_certs=options.ssl_ca_certs,
                ssl_cert_reqs=ssl.CERT_REQUIRED if options.ssl_ca_certs else ssl.CERT_NONE,
            )
        )
        self._service = service
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, within bounds, and stop the engine."""
        end = time.monotonic() + self._service.options.shutdown_timeout
        self._service.admission.draining = True
        ending = asyncio.create_task(self._end_late_requests())
        try:
            for connection in list(self.server_state.connections):
                if isinstance(connection, WebSocketProtocol):
                    connection.shutdown()
            while self._service.metrics.num_in_flight and not (ending.done() or self.force_exit):
                await asyncio.sleep(POLL_SECONDS)
            rest = max(0.0, end - time.monotonic()) + SHUTDOWN_GRACE_SECONDS
            self.config.timeout_graceful_shutdown = math.ceil(rest)
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await self._service.shutdown()
        # uvicorn would raise the signal again, and a drained server has not failed.
        self._captured_signals.clear()

    async def _end_late_requests(self) -> None:
        await asyncio.sleep(self._service.options.shutdown_timeout)
        await self._service.engine.shutdown()


def run_server(
    service: Service, listener: socket.socket, announce: Callable[[], None] = lambda: None
) -> None:
    """Serve until a signal, then drain; see :class:`Server`.

    Raises:
        ConfigError: Somebody else has taken the address since it was bound.
    """
    try:
        Server(service, announce).run(sockets=[listener])
    except OSError as error:
        raise ConfigError(f"[serve] the address must be free to listen on; got {error}.") from error
    finally:
        if service.options.uds is not None and os.path.exists(service.options.uds):
            os.unlink(service.options.uds)
