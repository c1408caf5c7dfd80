"""The memory that engines will take, known before any is started, and how several share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.counts import format_bytes
from quire.core.errors import ConfigError

#: An engine's process and those that try its grammars, or a rank's, apart from weights, scratch and
#: KV cache.
PROCESS_BYTES = 160 * 2**20


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """The memory that the engines of a model take together, in bytes, without their processes.

    Attributes:
        least: Bytes without which they do not run.
        most: Bytes beyond which more is of no use to them.
        num_processes: Processes of the engines and their ranks.
    """

    least: int
    most: int
    num_processes: int = 1

    @property
    def process_bytes(self) -> int:
        """Bytes that their processes take besides."""
        return self.num_processes * PROCESS_BYTES


def share_memory(needs: Sequence[MemoryNeeds], budget_bytes: int) -> list[int]:
    """Return the bytes for the engines of each of several models that are served together.

    Each model gets the least it needs; the rest is divided evenly, as far as it is of use.

    Raises:
        ConfigError: The models do not fit together.
    """
    grants = [need.least for need in needs]
    left = budget_bytes - sum(need.process_bytes for need in needs) - sum(grants)
    if left < 0:
        raise ConfigError(
            f"[config] models that are served together must fit in {format_bytes(budget_bytes)}; "
            f"got {format_bytes(budget_bytes - left)}. Raise --memory, lower --max-model-len, or "
            "give --load-on-demand, which holds some at a time."
        )
    wanting = sorted(range(len(needs)), key=lambda i: needs[i].most - needs[i].least)
    for position, index in enumerate(wanting):
        part = min(needs[index].most - needs[index].least, left // (len(wanting) - position))
        grants[index] += part
        left -= part
    return grants
