"""From a loaded engine to a listening server and back: bind first, drain last."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import stat
from collections.abc import Callable

import uvicorn

from quire.core.errors import ConfigError
from quire.server.app import create_app
from quire.server.options import ServerOptions
from quire.server.service import Service

KEEP_ALIVE_SECONDS = 60
#: What aborted requests get to hear of it before their connections are cut.
FAREWELL_SECONDS = 5


def bind(options: ServerOptions) -> socket.socket:
    """Take the address before anything is loaded; until the server listens nobody can connect.

    Raises:
        ConfigError: It is taken, or not ours to take.
    """
    if options.uds is not None:
        return _bind_unix(options.uds)
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
    except OSError as error:
        raise ConfigError(
            f"[serve] {options.host}:{options.port} must be free to listen on; "
            f"got {error.strerror}. "
            "Give another --host or --port, or stop what holds it."
        ) from error
    return listener


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path):
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise ConfigError(f"[serve] --uds must name a socket or nothing; got file {path}.")
            _refuse_living(path)
            os.unlink(path)
        listener.bind(path)
    except OSError as error:
        raise ConfigError(
            f"[serve] --uds {path} must be possible to listen on; got {error.strerror}."
        ) from error
    return listener


def _refuse_living(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return  # Left behind by a server that has died.
    raise ConfigError(f"[serve] --uds {path} must not be in use; another server listens there.")


def address(listener: socket.socket) -> str:
    """Return where clients reach ``listener``."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"


class Server(uvicorn.Server):
    """uvicorn, with an announcement and an ending of our own.

    On SIGTERM or SIGINT it stops listening, lets running requests finish for
    ``shutdown_timeout`` seconds, then stops the engine, which ends the rest with an error they
    can read.

    Args:
        service: What is served; its engine is shut down at the end.
        announce: Called once, when requests are accepted.
    """

    def __init__(self, service: Service, announce: Callable[[], None]) -> None:
        options = service.options
        super().__init__(
            uvicorn.Config(
                create_app(service),
                lifespan="off",
                ws="none",
                root_path=options.root_path,
                log_level=options.uvicorn_log_level,
                access_log=not options.disable_uvicorn_access_log,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(options.shutdown_timeout + FAREWELL_SECONDS),
                server_header=False,
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
        ending = asyncio.create_task(self._end_late_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await self._service.engine.shutdown()
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
