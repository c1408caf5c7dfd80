"""The plainest way to draft with a head: one sequence, everything computed again for each token.

It defines what the engine's proposers have to draft, in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.training.draft_layer import Drafts
from quire.training.medusa import TrainableMedusaHeads
from quire.training.recurrent_head import TrainableRecurrentHead


@torch.no_grad()
def draft_logits(
    head: TrainableRecurrentHead | TrainableMedusaHeads,
    token_ids: Tensor,
    states: Tensor,
    num_tokens: int,
) -> Tensor:
    """Return the logits (num_tokens, V) of a greedy draft that follows ``token_ids``.

    Args:
        head: A head of any kind.
        token_ids: (T,) int64, all known tokens; the last one was drawn from the last state.
        states: (T - 1, S) float32, the target's states of all but the last, T at least 2.
        num_tokens: Length of the draft; Medusa drafts at most one for each head.
    """
    if isinstance(head, TrainableMedusaHeads):
        last = states[-1, : head.vocabulary.head.shape[1]]
        return torch.stack([head.logits(last, number) for number in range(num_tokens)])
    features = head.features(states)
    features = torch.cat([torch.zeros_like(features[:1]), features])
    drafted: list[Tensor] = []
    while True:
        # All pairs are taken for genuine ones: plain causal attention over the whole sequence.
        every = Drafts(torch.arange(len(token_ids))[None])
        outputs = head.mix(features[None], head.embed(token_ids)[None], every)[0]
        drafted.append(head.logits(outputs[-1]))
        if len(drafted) == num_tokens:
            return torch.stack(drafted)
        token_ids = torch.cat([token_ids, drafted[-1].argmax()[None]])
        features = torch.cat([features, outputs[-1:]])


def draft_greedily(
    head: TrainableRecurrentHead | TrainableMedusaHeads,
    token_ids: Tensor,
    states: Tensor,
    num_tokens: int,
) -> list[int]:
    """Return the tokens of :func:`draft_logits`."""
    ids: list[int] = draft_logits(head, token_ids, states, num_tokens).argmax(-1).tolist()
    return ids
