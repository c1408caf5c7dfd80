"""Settings of adapters: whether there are any, how many at once, and how large."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import ConfigError
from quire.settings.option import options_of

option = options_of("adapters")
MOST_RANK = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """Adapters of low rank that requests may ask for."""

    enable_lora: bool = option(False, "requests may ask for LoRA adapters", common=True)
    max_loras: int = option(8, "most different adapters in a step")
    max_lora_rank: int = option(16, "largest rank of an adapter")
    max_cpu_loras: int | None = option(
        None, "adapters whose memory is set aside; default: the number of --max-loras"
    )

    @property
    def num_held(self) -> int:
        """The largest adapters that fit in memory at once; more that are smaller do."""
        return max(self.max_loras, self.max_cpu_loras or 0)

    def check(self) -> None:
        """Refuse numbers that cannot be.

        Raises:
            ConfigError: A number is out of range; the message names its flag.
        """
        if self.max_loras < 1:
            raise ConfigError(f"[config] --max-loras must be at least 1; got {self.max_loras}.")
        if not 1 <= self.max_lora_rank <= MOST_RANK:
            raise ConfigError(
                f"[config] --max-lora-rank must be in 1..{MOST_RANK}; got {self.max_lora_rank}."
            )
        held = self.max_cpu_loras
        if held is not None and held < self.max_loras:
            raise ConfigError(
                f"[config] --max-cpu-loras must be at least --max-loras ({self.max_loras}); got "
                f"{held}."
            )
