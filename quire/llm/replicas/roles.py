"""The roles of a model's engines; plain data."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from quire.core.errors import ConfigError
from quire.settings.kv_transfer import InboxAddress, KVTransfer

#: How blocks get from one engine to another; ``auto``: shared memory where one machine has both.
Transport: TypeAlias = Literal["auto", "shared", "tcp"]


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the last engines of a model; the others take any request.

    Attributes:
        num_prefill: Engines that compute prompts for the others, after all of these.
        prefill_tokens: Least tokens of such a prompt that are to be computed.
        num_long: Engines among the others, the last ones, which take only long prompts.
        long_tokens: Least tokens of a long prompt.
        transport: The way in which blocks of prompts are sent.
    """

    num_prefill: int = 0
    prefill_tokens: int = 1
    num_long: int = 0
    long_tokens: int = 1
    transport: Transport = "auto"

    def transfers(self, hosts: Sequence[str], first_port: int) -> list[KVTransfer | None]:
        """Return what each engine has to do with the prompts of others.

        Args:
            hosts: Hosts of the engines; those that compute prompts for the others come last.
            first_port: Port for blocks of the first engine, on its machine; engine n's is n more.

        Raises:
            ConfigError: Blocks cannot be sent in that way.
        """
        if not self.num_prefill:
            return [None] * len(hosts)
        own = f"quire-kv-{secrets.token_hex(16)}"
        key, count = secrets.token_hex(16), len(hosts) - self.num_prefill
        machines = set(hosts)
        if self.transport == "shared" and len(machines) > 1:
            raise ConfigError(
                "[config] --disaggregate-transport shared must come with one machine; got engines "
                f"on {', '.join(sorted(machines))}. Leave it out."
            )
        uses_tcp = self.transport == "tcp" or len(machines) > 1
        if uses_tcp and first_port + count > 2**16:
            raise ConfigError(
                f"[config] --master-port must be at most {2**16 - 1 - count}, to leave ports "
                f"after it for blocks of prompts; got {first_port - 1}. Give a lower one."
            )
        addresses = tuple(
            InboxAddress(
                "" if self.transport == "tcp" else f"{own}-{number}",
                *((host, first_port + number) if uses_tcp else ()),
            )
            for number, host in enumerate(hosts[:count])
        )
        decode = [KVTransfer("decode", (address,), key) for address in addresses]
        return [*decode, *[KVTransfer("prefill", addresses, key)] * self.num_prefill]


NO_ROLES = Roles()
