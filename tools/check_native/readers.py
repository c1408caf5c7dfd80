"""What reads strangers' bytes: files of models, and HTTP. Any bytes are read, or refused as agreed.

Each reader takes bytes and returns when it has read or refused them; whatever it raises is a
defect. ``tests/robustness/test_readers.py`` reads the committed inputs, ``scripts/check_native``
makes new ones from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from uvicorn.server import ServerState

from quire.checkpoints.gguf.gguf_file import forget_gguf
from quire.checkpoints.safetensors_file import DTYPES, SafetensorsFile
from quire.core.errors import QuireError
from quire.kernels.registry import create_backend
from quire.models.loader import load_model
from quire.server.http.boundary import Boundary
from quire.server.http.connection_rules import ConnectionRules, ProtocolConfig
from quire.server.http.host_rule import HostRule
from quire.server.http.protocol import HttpProtocol
from quire.server.http.websocket_protocol import WebSocketProtocol
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer

#: A file of the folder is replaced by the input; its number is the input's first byte. Chat
#: templates are not among them: they are programs of a model's author, which may run for ever.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json",
)  # fmt: skip
TEXT = "Hello <s> wörld\n\t 1234 \U0001f600"
#: Turns of the event loop after each piece; more than any request of the inputs needs.
TURNS = 12


class Readers:
    """The readers by name, with a folder for the files they are given.

    Args:
        folder: Written to.
        tokenizer: Holds a whole tokenizer, of which one file at a time is replaced.
    """

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self._backend = create_backend("cpu", threads=1)
        self._file = folder / "model"
        self._folder = folder / "tokenizer"
        self._folder.mkdir()
        self._whole = {name: (tokenizer / name).read_bytes() for name in TOKENIZER_FILES}
        self.by_name: dict[str, Callable[[bytes], None]] = {
            "gguf": self.gguf,
            "safetensors": self.safetensors,
            "tokenizer": self.tokenizer,
            "http": self.http,
        }

    def gguf(self, data: bytes) -> None:
        """Load a GGUF file: header, tokenizer, configuration, every tensor packed."""
        path = self._file.with_suffix(".gguf")
        path.write_bytes(data)
        forget_gguf()
        with contextlib.suppress(QuireError):
            encode_and_decode(load_tokenizer(path))
        with contextlib.suppress(QuireError):
            load_model(path, self._backend, max_model_len=16)

    def safetensors(self, data: bytes) -> None:
        """Read a safetensors file and every tensor of it."""
        path = self._file.with_suffix(".safetensors")
        path.write_bytes(data)
        with contextlib.suppress(QuireError):
            file = SafetensorsFile(path)
            for name, entry in file.entries.items():
                if entry.dtype in DTYPES:
                    assert file.tensor(name).array.nbytes == entry.nbytes

    def tokenizer(self, data: bytes) -> None:
        """Read a tokenizer's folder of which one file is not what it should be."""
        chosen = TOKENIZER_FILES[data[0] % len(TOKENIZER_FILES)] if data else TOKENIZER_FILES[0]
        for name, whole in (self._whole | {chosen: data[1:]}).items():
            (self._folder / name).write_bytes(whole)
        if chosen == "tokenizer.model":  # read when there is no other
            (self._folder / "tokenizer.json").unlink()
        with contextlib.suppress(QuireError):
            encode_and_decode(load_tokenizer(self._folder))

    def http(self, data: bytes) -> None:
        """Read what a client sends on one connection, in as many pieces as its first byte says."""
        asyncio.run(_serve(data[1:], 1 + data[0] % 8 if data else 1))


def encode_and_decode(tokenizer: Tokenizer) -> None:
    """Use a tokenizer as a request does; a refusal is a ``QuireError``."""
    ids = tokenizer.encode(TEXT)
    assert isinstance(tokenizer.decode(ids), str)


class _Transport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed, "written to after it was closed"
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


class _Errors(logging.Handler):
    """Turns what a server logs as an error, such as a traceback, into a failure."""

    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        raise AssertionError(f"logged: {record.getMessage()}") from problem


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    """Read a request to its end and answer; of a WebSocket, take and send back."""
    if scope["type"] == "websocket":
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message.get("text") or "bytes"})
        return
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


@contextlib.contextmanager
def _errors_raised() -> Iterator[None]:
    handler, loggers = _Errors(logging.ERROR), [logging.getLogger(n) for n in ("uvicorn", "quire")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


async def _serve(data: bytes, pieces: int) -> None:
    loop, failures = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    rules = ConnectionRules(HostRule(frozenset(["h"]), local=True))
    config = ProtocolConfig(
        Boundary(_echo),
        rules,
        http=HttpProtocol,
        ws=WebSocketProtocol,
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    config.load()
    state, transport = ServerState(), _Transport()
    protocol: Any = HttpProtocol(config, state, {})
    step = -(-len(data) // pieces) or 1
    with _errors_raised():
        protocol.connection_made(transport)
        transport.set_protocol(protocol)
        for begin in range(0, len(data), step):
            if transport.closed:
                break
            transport.protocol.data_received(data[begin : begin + step])
            for _ in range(TURNS):
                await asyncio.sleep(0)
        transport.protocol.connection_lost(None)
        for _ in range(TURNS):
            await asyncio.sleep(0)
    for task in state.tasks:
        assert task.done(), "a request without an end"
    assert not failures, failures
    assert not transport.written or transport.written.startswith(b"HTTP/1.1 "), transport.written
