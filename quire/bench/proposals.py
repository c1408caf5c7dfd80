"""A server's counts of proposed tokens, read from its metrics; not what it sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from quire.bench.connection import ConnectionPool
from quire.bench.load_client import get
from quire.core.errors import ConfigError

_STEM = ":spec_decode_num_"


@dataclass(frozen=True, slots=True)
class Proposals:
    """Counts of all methods, engines and models of a server, since its start or between two times.

    Attributes:
        num_drafts: Rounds of a sequence in which tokens were proposed.
        num_draft_tokens: Tokens proposed.
        num_accepted: Proposed tokens that held.
        accepted_at: Proposed tokens that held, by position in their round.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    accepted_at: tuple[int, ...] = ()

    def since(self, earlier: Proposals) -> Proposals:
        """Return what was counted after ``earlier``."""
        before = (*earlier.accepted_at, *[0] * len(self.accepted_at))
        return Proposals(
            self.num_drafts - earlier.num_drafts,
            self.num_draft_tokens - earlier.num_draft_tokens,
            self.num_accepted - earlier.num_accepted,
            tuple(now - then for now, then in zip(self.accepted_at, before, strict=False)),
        )

    def __add__(self, other: Proposals) -> Proposals:
        length = max(len(self.accepted_at), len(other.accepted_at))
        mine, its = (
            (*counts, *[0] * (length - len(counts)))
            for counts in (self.accepted_at, other.accepted_at)
        )
        return Proposals(
            self.num_drafts + other.num_drafts,
            self.num_draft_tokens + other.num_draft_tokens,
            self.num_accepted + other.num_accepted,
            tuple(a + b for a, b in zip(mine, its, strict=True)),
        )

    @property
    def acceptance_rate(self) -> float:
        """Percent of the proposed tokens that held; nan where nothing was proposed."""
        if not self.num_draft_tokens:
            return math.nan
        return 100 * self.num_accepted / self.num_draft_tokens

    @property
    def acceptance_length(self) -> float:
        """Tokens of a round in which some were proposed, the model's own included."""
        return 1 + self.num_accepted / self.num_drafts if self.num_drafts else math.nan

    @property
    def rates_by_position(self) -> list[float]:
        """Share of the rounds in which the token at each position held; 0 to 1."""
        rounds = self.num_drafts
        return [count / rounds for count in self.accepted_at] if rounds else []

    def tokens_per_forward(self, num_tokens: int) -> float:
        """Return the tokens that a sequence got from one forward, on average.

        A forward brings the model's own token and those that held before it, so that
        ``num_tokens`` less those that held is the number of forwards. Proposals that held past a
        stop string or ``max_tokens`` make it a little too high.

        Args:
            num_tokens: Tokens that were generated meanwhile.
        """
        forwards = num_tokens - self.num_accepted
        return num_tokens / forwards if forwards > 0 else math.nan


async def read_proposals(pool: ConnectionPool) -> Proposals | None:
    """Return a server's counts so far; None where it counts no proposals.

    Raises:
        ConfigError: The server shows no metrics.
    """
    try:
        status, body = await get(pool, "/metrics")
    except OSError as error:
        raise ConfigError(f"[bench] /metrics must be answered; got {error}.") from error
    if status != 200:
        raise ConfigError(f"[bench] the server must show /metrics; got HTTP {status}.")
    return parse_proposals(body.decode(errors="replace"))


def parse_proposals(text: str) -> Proposals | None:
    """Return the counts of a Prometheus exposition, of Quire or vLLM; None where it has none.

    Raises:
        ConfigError: The text is not a Prometheus exposition.
    """
    counts: dict[str, int] = {}
    positions: dict[int, int] = {}
    try:
        for family in text_string_to_metric_families(text):
            _, found, name = family.name.partition(_STEM)
            for sample in family.samples if found else ():
                if not sample.name.endswith("_total"):
                    continue
                if name == "accepted_tokens_per_pos":
                    position = int(sample.labels["position"])
                    positions[position] = positions.get(position, 0) + int(sample.value)
                else:
                    counts[name] = counts.get(name, 0) + int(sample.value)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"[bench] /metrics must be Prometheus' text format; got {error}."
        ) from error
    if "drafts" not in counts:
        return None
    return Proposals(
        counts["drafts"],
        counts.get("draft_tokens", 0),
        counts.get("accepted_tokens", 0),
        tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1)),
    )
