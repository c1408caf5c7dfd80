"""Messages between the processes of engine and server.

Token ids and log-probabilities only; text stays with the server's process.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from quire.core.engine_request import EngineRequest
from quire.core.metrics import Samples
from quire.core.model.model_config import ModelConfig
from quire.engine.engine_output import EngineOutput
from quire.settings.config import EngineConfig
from quire.system.log import LogFormat


class Start(msgspec.Struct, tag=True):
    """First message to the engine: what to load."""

    folder: str
    config: EngineConfig
    eos_token_ids: tuple[int, ...]
    tokenizer_folder: str
    log_format: LogFormat = "human"
    niceness: int = 0


class Add(msgspec.Struct, tag=True):
    """Queue a request; it is answered by outputs or a :class:`Refused`."""

    request: EngineRequest


class Abort(msgspec.Struct, tag=True):
    """End a request; its last outputs and then :class:`Done` follow."""

    request_id: str
    ticket: int


class StopSequence(msgspec.Struct, tag=True):
    """A stop string ended this sequence."""

    request_id: str
    index: int


class Describe(msgspec.Struct, tag=True):
    """Ask for the block tables as text; :class:`Done` follows."""

    ticket: int


class LoadProgress(msgspec.Struct, tag=True):
    """The progress of loading, in bytes of weights."""

    done_bytes: int
    total_bytes: int


class ResetPrefixCache(msgspec.Struct, tag=True):
    """Forget the content of all blocks; :class:`Done` follows."""

    ticket: int


class Loaded(msgspec.Struct, tag=True):
    """The engine takes requests."""

    model_config: ModelConfig
    max_model_len: int
    stats: Samples


class Failed(msgspec.Struct, tag=True):
    """The engine could not load, or a step failed; it ends.

    Attributes:
        kind: Name of a class in :mod:`quire.core.errors`.
    """

    kind: str
    message: str


class Refused(msgspec.Struct, tag=True):
    """A request was not taken; ``kind`` is the same as in :class:`Failed`."""

    request_id: str
    kind: str
    message: str
    param: str | None


class Step(msgspec.Struct, tag=True):
    """A step is done: proof of progress, with what it produced.

    Attributes:
        stats: The engine's counters, when they are due.
    """

    outputs: list[EngineOutput]
    stats: Samples | None = None


class Done(msgspec.Struct, tag=True):
    """A question is answered."""

    ticket: int
    text: str = ""


ToEngine: TypeAlias = Start | Add | Abort | StopSequence | Describe | ResetPrefixCache
FromEngine: TypeAlias = LoadProgress | Loaded | Failed | Refused | Step | Done

to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)
