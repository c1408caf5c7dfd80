"""Which of a model's engines has which of its experts; plain data."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from quire.core.config import EngineConfig
from quire.core.expert_sharing import ExpertSharing


def find_sharings(config: EngineConfig, count: int) -> Sequence[ExpertSharing | None]:
    """Return what each of a model's engines has to do with the experts of others.

    Args:
        config: The settings of all.
        count: Engines.
    """
    if count == 1 or not config.parallel.shares_experts:
        return [None] * count
    name = f"quire-experts-{secrets.token_hex(16)}"
    addresses = tuple(f"{name}-{number}" for number in range(count))
    return [ExpertSharing(number, addresses) for number in range(count)]
