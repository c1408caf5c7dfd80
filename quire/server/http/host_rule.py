"""The names that a server answers to, and the web pages that may call it.

A page of the web can point its own name at 127.0.0.1 (DNS rebinding) and then talk to a server
there as if it were its own. It cannot hide the name: that is in ``Host``.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from quire.server.http.http_errors import ApiError

#: RFC 9110, section 7.2: a name or address, then perhaps a port.
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+;=-]+)(?::\d{0,5})?")
ANY = "*"

Headers = Iterable[tuple[bytes, bytes]]


class HostError(ApiError):
    """A refusal of a request for its ``Host`` or ``Origin``.

    Attributes:
        reason: ``host`` or ``origin``; None for a head that no HTTP/1.1 request may have.
    """

    def __init__(self, status: int, message: str, reason: str | None = None) -> None:
        super().__init__(status, message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class HostRule:
    """The rule of one server.

    Attributes:
        names: Hosts that requests may name, in lower case, with or without a port; None for all.
        origins: Origins of other web pages that may call; ``*`` is any.
        local: Whether requests may name this machine by its local names, too.
    """

    names: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    local: bool = False

    @classmethod
    def create(
        cls,
        hosts: Sequence[str],
        origins: Sequence[str],
        bound: str,
        listeners: Sequence[socket.socket] = (),
    ) -> HostRule:
        """Return the rule of a server that listens on ``listeners``.

        Args:
            hosts: Names to answer to; none: those of this machine on loopback, any elsewhere.
            origins: Web pages that may call.
            bound: The name or address that the server was told to listen on.
            listeners: The server's sockets.
        """
        local = bool(listeners) and all(_is_loopback(listener) for listener in listeners)
        names = frozenset(host.lower().rstrip(".") for host in (*hosts, bound))
        any_host = ANY in hosts or not (hosts or local)
        return cls(None if any_host else names, frozenset(origins), local or bool(hosts))

    def check(self, headers: Headers, http_version: str = "1.1") -> None:
        """Refuse a request by its head.

        Raises:
            HostError: 400 without exactly one valid ``Host``; 403 when the ``Host`` or the
                ``Origin`` is not permitted.
        """
        given = [value for name, value in headers if name == b"host"]
        if not given and http_version == "1.0":  # older than the field; no browser speaks it
            return
        match = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if match is None:
            got = (
                f"{len(given)} of them"
                if len(given) != 1
                else ascii(given[0][:80].decode("latin-1"))
            )
            raise HostError(400, f"[host] a request must have one valid Host header; got {got}.")
        if self.names is None:
            return
        host = given[0].decode().lower()
        name = match[1].decode().lower().rstrip(".")
        if not (name in self.names or host in self.names or (self.local and _is_local(name))):
            raise HostError(
                403,
                f"[host] this server does not answer to {name[:80]!a}, so that no web page reaches "
                "it under a name of its own. Start it with --allowed-hosts NAME to let it.",
                "host",
            )
        self.check_origin(headers)

    def check_origin(self, headers: Headers) -> None:
        """Refuse what a page of another origin sends.

        Raises:
            HostError: 403.
        """
        found = {name: value.decode("latin-1") for name, value in headers}
        origin = found.get(b"origin")
        if origin is None or origin in self.origins or ANY in self.origins:
            return
        # A proxy may have changed the Host; browsers let no page set this one.
        if found.get(b"sec-fetch-site") == "same-origin":
            return
        if _place(origin) != found.get(b"host", "").lower():
            raise HostError(
                403,
                f"[origin] pages of {origin[:80]!a} may not call. Start the server with "
                "--allowed-origins ORIGIN to let them.",
                "origin",
            )


def _place(origin: str) -> str | None:
    """Return host and port of an origin; None when it has none (``null``, nonsense)."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _is_local(name: str) -> bool:
    """Return whether a name can mean this machine only (RFC 6761 for ``localhost``)."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_loopback(listener: socket.socket) -> bool:
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return False  # no web page reaches a Unix socket
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
