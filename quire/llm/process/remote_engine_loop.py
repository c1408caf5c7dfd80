"""The process of an engine whose server is on another machine."""

from __future__ import annotations

import socket
from dataclasses import replace

import msgspec

from quire.llm.process.engine_loop import serve
from quire.llm.process.engine_messages import Start
from quire.runner.ranks.handshake import receive_with_descriptors
from quire.settings.config import EngineConfig
from quire.system.channel import send
from quire.system.log import LogFormat


class OwnSettings(msgspec.Struct, frozen=True):
    """The settings that the machine of an engine decides itself.

    Attributes:
        folder: The checkpoint on that machine.
        tokenizer_folder: The checkpoint's tokenizer on that machine.
        config: The engine's settings, with its part of that machine.
        log_format: Format of its log lines.
    """

    folder: str
    tokenizer_folder: str
    config: EngineConfig
    log_format: LogFormat

    def adapt(self, start: Start) -> Start:
        """Return the settings to load here: the contexts are as long as the server has promised."""
        theirs = start.config
        model = replace(self.config.model, max_model_len=theirs.model.max_model_len)
        return msgspec.structs.replace(
            start,
            folder=self.folder,
            tokenizer_folder=self.tokenizer_folder,
            config=replace(self.config, model=model, transfer=theirs.transfer),
            log_format=self.log_format,
        )


def hand_over(parent: socket.socket, connection: socket.socket, own: OwnSettings) -> None:
    """Pass the connection to the server to the process that runs :func:`run`.

    Args:
        parent: The socket to that process.
        connection: The connection to the server; a duplicate is sent.
        own: The settings that this machine decides.

    Raises:
        OSError: The process is gone.
    """
    send(parent, own, connection.fileno())


def run(parent: socket.socket) -> None:
    """Serve as the engine of the server that the parent process hands over, until either ends."""
    try:
        own, (descriptor,) = receive_with_descriptors(parent, OwnSettings)
    except (EOFError, OSError, ValueError):
        return
    serve(socket.socket(fileno=descriptor), own.adapt)
