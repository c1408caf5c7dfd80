"""Fetches a picture over http(s), from addresses that were checked and no others.

The name is looked up once, each of its addresses is checked, and the connection goes to one of
these: what the name leads to a moment later does not matter. Proxies of the environment are not
asked. Each redirect is a URL like the first.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from urllib.parse import urljoin

from quire.core.errors import RequestError
from quire.llm.pictures.addresses import AllowedHosts, FetchTarget

#: Of a picture as it is sent.
MAX_BYTES = 20 * 2**20
#: For everything, redirects included.
FETCH_SECONDS = 10.0
MAX_REDIRECTS = 3
_CHUNK_BYTES = 2**16
_REDIRECTS = (301, 302, 303, 307, 308)


def fetch(url: str, allowed: AllowedHosts, where: str, seconds: float = FETCH_SECONDS) -> bytes:
    """Return the file that a URL leads to; blocks.

    Args:
        url: An http or https URL.
        allowed: The hosts it may lead to, by redirects, too.
        where: The request's field, for messages.
        seconds: Seconds that it may take.

    Raises:
        RequestError: The URL is not allowed, or its file is too large, too slow or no picture.
    """
    deadline = time.monotonic() + seconds
    for _ in range(MAX_REDIRECTS + 1):
        target = _target(url, allowed, where)
        connection = _connect(target, allowed, where, deadline)
        # Single reads have a timeout; all of them together have this.
        left = max(0.0, deadline - time.monotonic())
        cut = threading.Timer(left, _shut_down, (connection,))
        cut.daemon = True
        cut.start()
        try:
            found = _ask(connection, target, where)
        except RequestError:
            raise
        except (OSError, HTTPException, ValueError) as error:
            if time.monotonic() >= deadline:
                raise _too_slow(where, seconds) from error
            raise _refusal(where, f"lead to a picture; {target.host} does not answer") from error
        finally:
            cut.cancel()
            connection.close()
        if isinstance(found, bytes):
            if time.monotonic() >= deadline:  # cut short, which looks like an end
                raise _too_slow(where, seconds)
            return found
        url = _following(url, found, where)
    raise _refusal(where, f"redirect at most {MAX_REDIRECTS} times")


def _following(url: str, location: str, where: str) -> str:
    """Return the URL that a redirect leads to."""
    try:
        found = urljoin(url, location)
    except ValueError:
        raise _refusal(where, "redirect to a URL") from None
    if url.lower().startswith("https:") and not found.lower().startswith("https:"):
        raise _refusal(where, "not redirect from https to another scheme")
    return found


def _target(url: str, allowed: AllowedHosts, where: str) -> FetchTarget:
    try:
        target = FetchTarget.of(url)
    except ValueError as error:
        raise _refusal(where, str(error)) from None
    if not allowed.allows(target):
        raise _refusal(
            where, f"lead to a host that --allowed-media-domains names; got {target.host:.80}"
        )
    return target


def _connect(
    target: FetchTarget, allowed: AllowedHosts, where: str, deadline: float
) -> socket.socket:
    """Connect to an address of a host when all of them may be connected to."""
    # The same for a name that does not exist: no client learns which names there are inside.
    refusal = _refusal(where, f"lead to public addresses and no others; got {target.host:.80}")
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise refusal from error
    addresses = [(family, place) for family, _, _, _, place in found]
    if not all(allowed.allows_address(target, str(place[0])) for _, place in addresses):
        raise refusal
    for family, place in addresses:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.settimeout(max(0.001, deadline - time.monotonic()))
            made.connect(place)
            if target.scheme == "http":
                return made
            return ssl.create_default_context().wrap_socket(made, server_hostname=target.host)
        except (OSError, ValueError):  # ssl.SSLError is an OSError
            made.close()
    raise _refusal(where, f"lead to a picture; {target.host:.80} cannot be reached")


def _ask(connection: socket.socket, target: FetchTarget, where: str) -> bytes | str:
    """Return the body of an answer, or where a redirect leads."""
    asking = HTTPConnection(target.host, target.port)
    asking.sock = connection
    headers = {"User-Agent": "quire", "Accept": "image/*"}  # and no encoding but identity
    asking.request("GET", target.path, headers=headers)
    answer = asking.getresponse()
    location = answer.getheader("Location")
    if answer.status in _REDIRECTS and location:
        return location
    if answer.status != 200:
        raise _refusal(where, f"lead to a picture; {target.host:.80} answers {answer.status}")
    return _body(answer, where)


def _body(answer: HTTPResponse, where: str) -> bytes:
    told = answer.length or 0
    parts: list[bytes] = []
    size = 0
    while told <= MAX_BYTES and size <= MAX_BYTES:
        part = answer.read(_CHUNK_BYTES)
        if not part:
            if answer.length:
                raise IncompleteRead(b"", answer.length)
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise _refusal(where, f"lead to at most {MAX_BYTES} bytes")


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended meanwhile
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _too_slow(where: str, seconds: float) -> RequestError:
    return _refusal(where, f"be answered within {seconds:g} s")


def _refusal(where: str, rule: str) -> RequestError:
    return RequestError(f"[{where}] the picture's URL must {rule}.", where)
