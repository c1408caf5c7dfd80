"""The drafted tokens that a target keeps: greedy drafts against its greedy answers.

B sequences, R starts, J tokens of a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.training.draft_layer import Drafts
from quire.training.examples import Batch
from quire.training.medusa import TrainableMedusaHeads
from quire.training.recurrent_head import TrainableRecurrentHead


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The acceptance of drafts of J tokens.

    Attributes:
        equal: Share of tokens equal to the target's at that position, by place in the draft.
        kept: Share of drafts that are right up to and with that token, by place in the draft.
        tokens_per_round: Tokens of an answer for each draft when answers are drafted from their
            second token to their end, the target's own after each draft counted.
    """

    equal: tuple[float, ...]
    kept: tuple[float, ...]
    tokens_per_round: float


@torch.no_grad()
def draft_all(
    head: TrainableRecurrentHead | TrainableMedusaHeads, batch: Batch, num_tokens: int
) -> Tensor:
    """Return the greedy drafts (B, R, J) from all starts, each as if it were alone."""
    if isinstance(head, TrainableMedusaHeads):
        width = head.vocabulary.head.shape[1]
        before = (batch.starts - 1).clamp(min=0)
        states = batch.states[..., :width].gather(1, before[..., None].expand(-1, -1, width))
        heads = [head.logits(states, depth).argmax(-1) for depth in range(num_tokens)]
        return torch.stack(heads, dim=-1)
    drafts = Drafts(batch.starts)
    features, embeds = head.genuine(batch.states), head.embed(batch.token_ids)
    tokens: list[Tensor] = []
    for _ in range(num_tokens):
        features = head.mix(features, embeds, drafts)
        tokens.append(head.logits(features).argmax(-1))
        embeds = head.embed(tokens[-1])
    return torch.stack(tokens, dim=-1)


def measure_acceptance(draft: Callable[[Batch], Tensor], batches: Iterable[Batch]) -> Acceptance:
    """Draft from every token of greedy answers and compare.

    Args:
        draft: A function that returns (B, R, J) tokens, as :func:`draft_all`.
        batches: Batches of answers, at least one.
    """
    right: list[Tensor] = []
    known: list[Tensor] = []
    num_rounds = num_answered = 0
    for batch in batches:
        drafted = draft(batch)
        num_tokens = drafted.shape[-1]
        valid = torch.stack([batch.valid(depth) for depth in range(num_tokens)], -1)
        equal = (drafted == _answers(batch, num_tokens)) & valid
        for lengths, count in zip(
            equal.cumprod(-1).sum(-1).tolist(), batch.counts.tolist(), strict=True
        ):
            place = 0
            while place < count:
                place += lengths[place] + 1
                num_rounds += 1
            num_answered += count
        right.append(equal.flatten(0, 1))
        known.append(valid.flatten(0, 1))
    rights, num_known = torch.cat(right), torch.cat(known).sum(0).clamp(min=1)
    equal_shares, kept_shares = (
        tuple((part.sum(0) / num_known).tolist()) for part in (rights, rights.cumprod(-1))
    )
    return Acceptance(equal_shares, kept_shares, num_answered / num_rounds)


def _answers(batch: Batch, num_tokens: int) -> Tensor:
    """Return the tokens (B, R, J) that follow the starts; any where none is known."""
    last = batch.token_ids.shape[1] - 1
    following = [
        batch.token_ids.gather(1, (batch.positions(depth) + 1).clamp(max=last))
        for depth in range(num_tokens)
    ]
    return torch.stack(following, dim=-1)
