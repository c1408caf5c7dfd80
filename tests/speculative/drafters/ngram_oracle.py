"""What the n-gram proposer should propose, by comparing every suffix with every earlier place."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

#: Of the store: how much a segment counts for itself, and segments of all there is room for.
SEGMENT_TOKENS, SEGMENTS = 64, 4


def longest_match(suffix_of: list[int], text: list[int], longest: int) -> tuple[int, int]:
    """Find the longest suffix of one list that occurs in another.

    Returns:
        How many of its tokens, at most ``longest``, and the place of the last one where they occur
        last; ``(0, -1)`` when not even one does.
    """
    for length in range(min(longest, len(suffix_of), len(text)), 0, -1):
        suffix = suffix_of[len(suffix_of) - length :]
        for end in range(len(text) - 1, length - 2, -1):
            if text[end + 1 - length : end + 1] == suffix:
                return length, end
    return 0, -1


def last_repeat(text: list[int], longest: int) -> tuple[int, int]:
    """Find the longest suffix of a text that occurred in it before; see above."""
    return longest_match(text, text[:-1], longest)


@dataclass
class Segment:
    """Outputs that are dropped together; no match goes from one to the next."""

    outputs: list[list[int]] = field(default_factory=list)
    age: int = 0

    @property
    def size(self) -> int:
        """Tokens, and one for the end of each output."""
        return sum(len(output) + 1 for output in self.outputs)


@dataclass
class NgramOracle:
    """The proposer's rules, with lists.

    Args:
        shortest, longest, store_tokens: As of the proposer.
    """

    shortest: int
    longest: int
    store_tokens: int
    tenants: dict[str, list[Segment]] = field(default_factory=lambda: defaultdict(list))
    clock: int = 0

    def keep(self, tenant: str, output: list[int]) -> None:
        """Add an output to those of a tenant, in pieces that fill segments."""
        full = self.store_tokens // SEGMENTS - SEGMENT_TOKENS - 1
        while output and full > 0:
            segments = self.tenants[tenant]
            if not segments or segments[-1].size >= full:
                segments.append(Segment())
            room = full - segments[-1].size
            segments[-1].outputs.append(output[:room])
            segments[-1].age = self.clock = self.clock + 1
            output = output[room:]
            while self.num_stored() > self.store_tokens:
                self.drop_oldest()

    def num_stored(self) -> int:
        """Count what the bound is about."""
        return sum(s.size + SEGMENT_TOKENS for kept in self.tenants.values() for s in kept)

    def drop_oldest(self) -> None:
        """Let go of the segment whose newest output is the oldest."""
        _, tenant = min((s.age, t) for t, kept in self.tenants.items() for s in kept)
        self.tenants[tenant].remove(min(self.tenants[tenant], key=lambda s: s.age))

    def propose(self, tenant: str, text: list[int], most: int) -> list[int]:
        """Return what is proposed after ``text``."""
        length, end = last_repeat(text, self.longest)
        following: list[int] | None = None
        for segment in reversed(self.tenants[tenant]):
            stored, rest = self.match(text, segment)
            if stored > length and rest:
                length, following = stored, rest
        if length < self.shortest:
            return []
        most = min(most, length + length // 2)
        if following is not None:
            return following[:most]
        proposed = list(text)
        for i in range(most):
            proposed.append(proposed[end + 1 + i])
        return proposed[len(text) :]

    def match(self, text: list[int], segment: Segment) -> tuple[int, list[int]]:
        """Return the longest match in a segment, and what follows its last occurrence there."""
        best: tuple[int, list[int]] = 0, []
        for output in segment.outputs:
            length, end = longest_match(text, output, self.longest)
            if length and length >= best[0]:
                best = length, output[end + 1 :]
        return best
