"""An engine's part in computing prompts for other engines; plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class InboxAddress:
    """The address at which an engine takes blocks, in one way or both.

    Attributes:
        name: Name of a socket of its machine, by which others there share its memory; empty for
            none.
        host: Name or address of its machine, for those on others.
        port: TCP port on that machine; 0 for none.
    """

    name: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.name


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """An engine's role where prompts are computed apart from outputs.

    Attributes:
        role: The engine's role. ``prefill``: it computes prompts and sends their blocks on;
            ``decode``: it takes such blocks.
        addresses: The address at which it takes blocks; or those of the engines that it sends
            blocks to, by their numbers.
        key: The secret that only engines of this server know.
    """

    role: Literal["prefill", "decode"]
    addresses: tuple[InboxAddress, ...]
    key: str = field(default="", repr=False)
