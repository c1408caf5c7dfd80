"""What an engine has to do with the prompts of others; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """An engine's role where prompts are computed apart from outputs.

    Attributes:
        role: ``prefill``: it computes prompts and sends their blocks on; ``decode``: it takes such
            blocks.
        addresses: Names of sockets: where it takes blocks (one), or where the engines do that it
            sends them to, by their numbers.
    """

    role: Literal["prefill", "decode"]
    addresses: tuple[str, ...]
