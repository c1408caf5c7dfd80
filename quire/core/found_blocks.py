"""What a lookup of KV blocks outside of the cache has found; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """Blocks that tiers have, the leading ones of a chain.

    Attributes:
        load_seconds: What each is expected to take.
        start_seconds: That pass before the first one comes.
    """

    load_seconds: list[float]
    start_seconds: float = 0.0
