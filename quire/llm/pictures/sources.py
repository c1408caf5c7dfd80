"""Sources of the bytes of a request's pictures: the request, a folder, or the web."""

from __future__ import annotations

import base64
import os
import stat
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from quire.core.errors import ConfigError, RequestError
from quire.core.quoting import quoted
from quire.llm.pictures.addresses import AllowedHosts
from quire.llm.pictures.fetch import MAX_BYTES, fetch

#: Most characters of a URL that is not the picture itself.
MAX_URL = 8192
#: Characters of base64 that are decoded in one call, a multiple of four; it takes a millisecond.
DECODED_TOGETHER = 2**18
#: The kinds of content parts that are pictures.
PART_TYPES = ("image_url", "input_image")


@dataclass(frozen=True, slots=True)
class PictureSource:
    """A picture that a request names.

    Attributes:
        where: The request's field.
        url: The URL in that field.
    """

    where: str
    url: str


class SourceRules:
    """Rules for what may be read on behalf of clients, besides what they send.

    Args:
        allowed_domains: The same as in :class:`~quire.llm.pictures.addresses.AllowedHosts`; empty:
            none.
        allowed_path: Folder whose files may be read; None or empty: none.

    Raises:
        ConfigError: A host is not valid, or the folder does not exist.
    """

    def __init__(self, allowed_domains: tuple[str, ...], allowed_path: str | None) -> None:
        self._hosts = AllowedHosts(allowed_domains)
        self._folder = None if not allowed_path else Path(allowed_path).resolve()
        if self._folder is not None and not self._folder.is_dir():
            raise ConfigError(
                f"[config] --allowed-local-media-path must be a folder; got {allowed_path!r}."
            )

    def read(self, source: PictureSource) -> bytes:
        """Return a picture as it is stored; blocks.

        Raises:
            RequestError: The picture may not be read, or does not exist.
        """
        where, url = source.where, source.url
        scheme = url[:8].partition(":")[0].lower()
        if scheme == "data":
            return _read_data(url, where)
        if len(url) > MAX_URL:
            raise RequestError(
                f"[{where}] a picture's URL must have at most {MAX_URL} characters unless it is a "
                f"data: URL; got {len(url)}.",
                where,
            )
        if scheme in ("http", "https"):
            if not self._hosts:
                raise RequestError(
                    f"[{where}] pictures are not fetched from the web here. Send a data: URL, or "
                    "allow hosts with --allowed-media-domains.",
                    where,
                )
            return fetch(url, self._hosts, where)
        if scheme == "file":
            return self._read_file(url, where)
        raise RequestError(
            f"[{where}] a picture's URL must begin with data:, http:, https: or file:; got "
            f"{quoted(url, 40)}.",
            where,
        )

    def _read_file(self, url: str, where: str) -> bytes:
        if self._folder is None:
            raise RequestError(
                f"[{where}] pictures are not read from files here. Send a data: URL, or allow a "
                "folder with --allowed-local-media-path.",
                where,
            )
        try:
            data = _read_below(self._folder, url)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
            data = None
        if data is None or len(data) > MAX_BYTES:
            # The same for a missing file and one elsewhere: no client learns which it is.
            raise RequestError(
                f"[{where}] a file must be one of the folder of --allowed-local-media-path, of at "
                f"most {MAX_BYTES} bytes.",
                where,
            )
        return data


def _read_below(folder: Path, url: str) -> bytes | None:
    """Return the first bytes of a file, one more than are taken; None when it is not below."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        return None
    path = Path(unquote(parts.path)).resolve(strict=True)
    if not path.is_relative_to(folder):
        return None
    # No links: the path has none. Not blocking: a pipe is no picture.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return file.read(MAX_BYTES + 1)


def picture_sources(messages: Iterable[tuple[str, Any]]) -> list[PictureSource]:
    """Return the pictures of a conversation in order.

    Args:
        messages: Pairs of the field's name and its content: text, or parts in OpenAI's form. The
            chat template judges all else.

    Raises:
        RequestError: A part that is a picture has no URL.
    """
    found = []
    for name, content in messages:
        if not isinstance(content, list | tuple):
            continue
        for number, part in enumerate(content):
            if isinstance(part, Mapping) and part.get("type") in PART_TYPES:
                found.append(_source(part, f"{name}[{number}].image_url"))
    return found


def _source(part: Mapping[str, Any], where: str) -> PictureSource:
    value = part.get("image_url")
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        raise RequestError(f"[{where}] must hold a URL; got {quoted(value)}.", where)
    return PictureSource(where, url)


def _read_data(url: str, where: str) -> bytes:
    """Return the bytes of a data URL (RFC 2397) in base64."""
    head, comma, payload = url.partition(",")
    kind, *parameters = head[len("data:") :].split(";")
    if not comma or not parameters or parameters[-1].strip().lower() != "base64":
        raise RequestError(
            f"[{where}] a data URL must be data:image/...;base64,...; got {quoted(url, 40)}.", where
        )
    if not kind.strip().lower().startswith("image/"):
        raise RequestError(
            f"[{where}] a data URL must be of a type image/...; got {quoted(kind, 40)}.", where
        )
    if len(payload) > 4 * (MAX_BYTES // 3 + 1):
        raise RequestError(f"[{where}] a picture must have at most {MAX_BYTES} bytes.", where)
    try:
        return _decode_base64(payload)
    except (Base64Error, ValueError) as error:
        raise RequestError(f"[{where}] must be base64; {error}.", where) from error


def _decode_base64(text: str) -> bytes:
    """Return what a text stands for, decoded in parts: other threads wait for one at most."""
    if text.find("=", 0, -2) >= 0:
        raise ValueError("only its end may be padded")
    parts = (text[i : i + DECODED_TOGETHER] for i in range(0, len(text), DECODED_TOGETHER))
    return b"".join(base64.b64decode(part, validate=True) for part in parts)
