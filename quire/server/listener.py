"""The socket that a server listens on; nothing here takes time to import."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from typing import Any, NoReturn

from quire.core.errors import ConfigError
from quire.server.server_options import ServerOptions


def bind(options: ServerOptions) -> socket.socket:
    """Take the address before anything is loaded; no client can connect until the socket listens.

    Raises:
        ConfigError: The address is taken or not permitted, or a file for TLS is wrong.
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
