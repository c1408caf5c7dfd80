"""The objective of a head: the target's distribution at the positions it drafts for.

B sequences, R starts, D model dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from quire.training.draft_layer import Drafts
from quire.training.examples import Batch
from quire.training.medusa import TrainableMedusaHeads
from quire.training.recurrent_head import TrainableRecurrentHead


@dataclass(frozen=True, slots=True)
class Objective:
    """The weights by which losses are added up.

    Attributes:
        depths: Tokens that are drafted in training, each from the head's own last output (the
            training-time test of EAGLE-3); Medusa has a head for each instead.
        decay: Weight of a depth, as a factor of the one before.
        regression: Weight of the distance to the target's own feature (EAGLE).
    """

    depths: int
    decay: float = 0.8
    regression: float = 0.0


def labels_of(batch: Batch, head: Tensor) -> Tensor:
    """Return the target's distribution (B, R, V) at the starts; zeros where there is none."""
    states = batch.states[..., : head.shape[1]]
    picked = states.gather(1, batch.starts[..., None].expand(-1, -1, states.shape[-1]))
    labels = torch.zeros(*picked.shape[:2], len(head))
    valid = batch.valid(0)
    labels[valid] = (picked[valid] @ head.T).float().softmax(-1)
    return labels


def loss_of(
    head: TrainableRecurrentHead | TrainableMedusaHeads, batch: Batch, objective: Objective
) -> Tensor:
    """Return the mean loss of a batch's drafts, a scalar."""
    with torch.no_grad():
        labels = labels_of(batch, head.vocabulary.head)
    if isinstance(head, TrainableMedusaHeads):
        return _medusa_loss(head, batch, labels, objective)
    features = head.genuine(batch.states)
    embeds = head.embed(batch.token_ids)
    drafts = Drafts(batch.starts)
    total, weights = features.new_zeros(()), 0.0
    for depth in range(objective.depths):
        valid = batch.valid(depth)
        if not valid.any():
            break
        outputs = head.mix(features, embeds, drafts)
        weight = objective.decay**depth
        wanted = labels[:, depth:][valid[:, : labels.shape[1] - depth]]
        total = total + weight * _cross_entropy(head.logits(outputs[valid]), wanted)
        if objective.regression:
            wanted_states = _states_at(batch, depth, valid)[:, : outputs.shape[-1]]
            distance = functional.smooth_l1_loss(outputs[valid], wanted_states)
            total = total + weight * objective.regression * distance
        weights += weight
        features = outputs
        embeds = head.embed(batch.token_ids.gather(1, batch.positions(depth + 1)))
    return total / weights


def _medusa_loss(
    heads: TrainableMedusaHeads, batch: Batch, labels: Tensor, objective: Objective
) -> Tensor:
    """Each head reads the last state that the target computed, that before the start."""
    total, weights = labels.new_zeros(()), 0.0
    for depth in range(min(objective.depths, len(heads.heads))):
        valid = batch.valid(depth)
        if not valid.any():
            break
        weight = objective.decay**depth
        states = _states_at(batch, -1, valid)[:, : heads.vocabulary.head.shape[1]]
        wanted = labels[:, depth:][valid[:, : labels.shape[1] - depth]]
        total = total + weight * _cross_entropy(heads.logits(states, depth), wanted)
        weights += weight
    return total / weights


def _states_at(batch: Batch, depth: int, valid: Tensor) -> Tensor:
    """Return the target's states ``depth`` after the starts that ``valid`` names, (n, S)."""
    sequences = torch.arange(len(batch.starts))[:, None].expand_as(batch.starts)
    return batch.states[sequences[valid], (batch.starts + depth)[valid]]


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of ``-sum(labels * log_softmax(logits))``; nothing is expected of -inf."""
    logprobs = logits.float().log_softmax(-1)
    if torch.isneginf(logprobs[:1]).any():  # a draft vocabulary leaves out the same in all rows
        logprobs = logprobs.masked_fill(torch.isneginf(logprobs), 0.0)
    return -(labels * logprobs).sum(-1).mean()
