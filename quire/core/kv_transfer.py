"""What an engine has to do with the prompts of others; plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class InboxAddress:
    """Where an engine takes blocks, in one way or both.

    Attributes:
        name: Of a socket of its machine, by which others there share its memory; empty for none.
        host: Name or address of its machine, for those on others.
        port: There; 0 for none.
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
        role: ``prefill``: it computes prompts and sends their blocks on; ``decode``: it takes such
            blocks.
        addresses: Where it takes blocks (one), or where the engines do that it sends them to, by
            their numbers.
        key: What only engines of this server know.
    """

    role: Literal["prefill", "decode"]
    addresses: tuple[InboxAddress, ...]
    key: str = field(default="", repr=False)
