"""Which of a model's engines do what; plain data."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from quire.core.kv_transfer import KVTransfer


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the last engines of a model; the others take any request.

    Attributes:
        num_prefill: Engines that compute prompts for the others, after all of these.
        prefill_tokens: Least tokens of such a prompt that are to be computed.
        num_long: Of the others, the last ones, which take long prompts alone.
        long_tokens: Least tokens of a long prompt.
    """

    num_prefill: int = 0
    prefill_tokens: int = 1
    num_long: int = 0
    long_tokens: int = 1

    def transfers(self, count: int) -> list[KVTransfer | None]:
        """Return what each engine has to do with the prompts of others.

        Args:
            count: Engines, those left out that compute prompts for them.
        """
        if not self.num_prefill:
            return [None] * count
        name = f"quire-kv-{secrets.token_hex(16)}"
        addresses = tuple(f"{name}-{number}" for number in range(count))
        decode = [KVTransfer("decode", (address,)) for address in addresses]
        return [*decode, *[KVTransfer("prefill", addresses)] * self.num_prefill]


NO_ROLES = Roles()
