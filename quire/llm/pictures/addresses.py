"""The hosts and addresses that pictures may be fetched from; no request is made here.

A server that fetches what clients name would otherwise fetch from its own network for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from quire.core.errors import ConfigError
from quire.llm.pictures.special_ranges import is_special

#: In place of a host: every one whose addresses are public.
ANY_HOST = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """The destination of a URL.

    Attributes:
        scheme: ``http`` or ``https``.
        host: A name in lower case, or an address without brackets.
        port: TCP port.
        path: The path with the query; begins with a slash.
    """

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> FetchTarget:
        """Read a URL.

        Raises:
            ValueError: The text is not a URL, or has parts that a picture's URL must not have; the
                message ends a sentence that begins with "must".
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"be a URL ({error})") from None
        if parts.scheme not in _DEFAULT_PORTS:
            raise ValueError("be an http or https URL")
        if parts.username is not None or parts.password is not None:
            raise ValueError("have no user or password")
        host = (parts.hostname or "").rstrip(".")
        if not host or not host.isprintable() or " " in host:
            raise ValueError("name a host")
        path = parts.path or "/"
        if parts.query:
            path = f"{path}?{parts.query}"
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError("have only ASCII characters in its path, others as %xx")
        default = _DEFAULT_PORTS[parts.scheme]
        return cls(parts.scheme, host, default if port is None else port, path)


class AllowedHosts:
    """The hosts that an administrator allows.

    Args:
        entries: Each a name or an address, ``host`` (ports 80 and 443) or ``host:port``, or
            :data:`ANY_HOST`. Names lead to public addresses alone; an address that is given as
            such may be any.

    Raises:
        ConfigError: An entry is none of these.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._any = ANY_HOST in entries
        self._hosts: set[tuple[str, int]] = set()
        for entry in entries:
            if entry == ANY_HOST:
                continue
            host, port = _read_entry(entry)
            ports = tuple(_DEFAULT_PORTS.values()) if port is None else (port,)
            self._hosts.update((host, one) for one in ports)

    def __bool__(self) -> bool:
        return self._any or bool(self._hosts)

    def allows(self, target: FetchTarget) -> bool:
        """Return whether an administrator has allowed its host and port."""
        is_usual = target.port in _DEFAULT_PORTS.values()
        return (_plain(target.host), target.port) in self._hosts or (self._any and is_usual)

    def allows_address(self, target: FetchTarget, address: str) -> bool:
        """Return whether a connection to one of its host's addresses may be made."""
        if is_public(address):
            return True
        named = _plain(target.host)
        return named == _plain(address) and (named, target.port) in self._hosts


def is_public(address: str) -> bool:
    """Return whether an address is one of the internet at large, as far as the text tells."""
    found = _address(address)
    return found is not None and not is_special(found)


def _address(text: str) -> Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _plain(host: str) -> str:
    """Return a host in one spelling."""
    address = _address(host)
    return host.lower().rstrip(".") if address is None else str(address)


def _read_entry(entry: str) -> tuple[str, int | None]:
    if _address(entry) is not None:  # an IPv6 address is full of colons
        return _plain(entry), None
    try:
        parts = urlsplit(f"//{entry}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.path or parts.username is not None or "*" in entry:
        raise ConfigError(
            "[config] --allowed-media-domains must be hosts, such as example.com or "
            f"10.0.0.5:8080, or {ANY_HOST}; got {entry!r:.80}."
        )
    return _plain(host), port
