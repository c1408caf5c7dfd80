"""The result of a lookup of KV blocks outside of the cache; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExternalBlocks:
    """Blocks that tiers have, the leading ones of a chain.

    Attributes:
        load_seconds: Seconds that loading each block is expected to take.
        start_seconds: Seconds that pass before the first block arrives.
    """

    load_seconds: list[float]
    start_seconds: float = 0.0
