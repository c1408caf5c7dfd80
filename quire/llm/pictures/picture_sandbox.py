"""A process that decodes pictures; its parent ends it when that does not end.

Decoders are C code that reads files of strangers, and a file of a few bytes may need gigabytes.
"""

from __future__ import annotations

import os
import socket
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from quire.core.model.vision_config import PictureShape
from quire.llm.pictures.decoding import PictureError, Prepared, decode
from quire.system.sandboxes import limit_computing, limit_memory

#: What a picture may take: four bytes for each pixel of the largest one, four times over.
MEMORY_BYTES = 2**30
#: Tokens of running requests come first.
NICENESS = 5


class Decoded(msgspec.Struct):
    """The prepared picture, or the reason why there is none."""

    prepared: Prepared | None = None
    refusal: str = ""


def decode_in_sandbox(connection: socket.socket) -> None:
    """Answer each file that arrives with its pixels or a refusal, until the socket closes.

    The first message is how long a picture may take, in seconds; each other one what a picture
    becomes, and its file.
    """
    os.nice(NICENESS)
    warnings.simplefilter("ignore")
    link = Connection(connection.detach())
    with suppress(EOFError, OSError):
        seconds = msgspec.msgpack.decode(link.recv_bytes(), type=float)
        _load_decoders()
        limit_memory(MEMORY_BYTES)
        link.send_bytes(b"")
        while True:
            shape, data = msgspec.msgpack.decode(link.recv_bytes(), type=tuple[PictureShape, bytes])
            limit_computing(seconds)
            link.send_bytes(msgspec.msgpack.encode(_decode(data, shape)))


def _decode(data: bytes, shape: PictureShape) -> Decoded:
    try:
        return Decoded(decode(data, shape))
    except PictureError as error:
        return Decoded(refusal=str(error))
    except MemoryError:
        return Decoded(refusal="be smaller; it takes more memory than there is")


def _load_decoders() -> None:
    """Import what decodes, before memory is limited."""
    from PIL import (  # noqa: F401
        GifImagePlugin,
        ImageOps,
        JpegImagePlugin,
        PngImagePlugin,
        WebPImagePlugin,
    )
