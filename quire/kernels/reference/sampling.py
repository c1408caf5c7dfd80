"""The meaning of ``kernels/sampling.py`` in plain torch, one row at a time, in float64."""

from __future__ import annotations

import torch

from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.sampling import draw_bits, draw_keys


def penalized(logits: torch.Tensor, batch: SamplingBatch, row: int) -> torch.Tensor:
    """Return steps 1 to 3 of the definition for one row, (V,) float64."""
    x = logits[row].double().clone()
    mask_row = int(batch.mask_rows[row])
    if mask_row >= 0:
        # torch shifts no unsigned words; the bytes of a little-endian word are in bit order too.
        bits = batch.mask_words[mask_row].view(torch.uint8)[:, None] >> torch.arange(8) & 1
        x[bits.flatten()[: len(x)] == 0] = -torch.inf
    allowed = _slice(batch.allowed_ids, batch.allowed_offsets, row)
    if len(allowed):
        keep = torch.zeros(len(x), dtype=torch.bool)
        keep[allowed.long()] = True
        x[~keep] = -torch.inf
    bias_ids = _slice(batch.bias_ids, batch.bias_offsets, row).long()
    x.index_add_(0, bias_ids, _slice(batch.bias_values, batch.bias_offsets, row).double())
    history = _slice(batch.history_ids, batch.history_offsets, row).long()
    seen = torch.unique(history)
    penalty = float(batch.repetition_penalty[row])
    x[seen] = torch.where(x[seen] > 0, x[seen] / penalty, x[seen] * penalty)
    output = history[int(batch.num_prompt_tokens[row]) :]
    count = torch.bincount(output, minlength=len(x))
    x -= float(batch.frequency_penalty[row]) * count
    x -= float(batch.presence_penalty[row]) * (count > 0)
    return x


def kept_weights(x: torch.Tensor, batch: SamplingBatch, row: int) -> torch.Tensor:
    """Return steps 4 and 5: (V,) float64 weights, 0 for tokens that are not kept."""
    weights = torch.exp((x - x.max()) / float(batch.temperature[row]))
    order = torch.sort(x, descending=True, stable=True).indices
    kept = order[weights[order] >= float(batch.min_p[row])]
    top_k = int(batch.top_k[row])
    if top_k > 0:
        kept = kept[:top_k]
    top_p = float(batch.top_p[row])
    if top_p < 1.0:
        before = weights[kept].cumsum(0) - weights[kept]
        kept = kept[(before < top_p * weights[kept].sum()) | (kept == order[0])]
    result = torch.zeros_like(weights)
    result[kept] = weights[kept]
    return result


def exponentials(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return E of ``token_ids`` (n,) int64 at a seed and position, (n,) float64."""
    bits = draw_bits(draw_keys(seed, position), token_ids)
    return -torch.log1p(-(bits.double() + 0.5) * 2.0**-52)


def _has_choice(x: torch.Tensor) -> bool:
    return not bool(torch.isnan(x).any()) and bool(torch.isfinite(x.max()))


def sample(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Return one token per row, (B,) int32."""
    tokens = []
    for row in range(logits.shape[0]):
        x = penalized(logits, batch, row)
        if not _has_choice(x):
            tokens.append(-1)
        elif float(batch.temperature[row]) == 0.0:
            tokens.append(int((x == x.max()).nonzero()[0]))
        else:
            kept = kept_weights(x, batch, row) > 0
            scores = (x - x.max()) / float(batch.temperature[row])
            # torch cannot turn uint64 beyond 2 ** 63 into a number; keys are taken modulo 2 ** 64.
            seed = int(batch.seed.view(torch.int64)[row])
            scores -= exponentials(seed, int(batch.position[row]), torch.arange(len(x))).log()
            tokens.append(int(scores.where(kept, -torch.inf).argmax()))
    return torch.tensor(tokens, dtype=torch.int32)


def sampling_probabilities(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Return what ``sample`` draws from, (B, V) float32."""
    result = torch.zeros(logits.shape)
    for row in range(logits.shape[0]):
        x = penalized(logits, batch, row)
        if not _has_choice(x):
            continue
        if float(batch.temperature[row]) == 0.0:
            result[row, int((x == x.max()).nonzero()[0])] = 1.0
        else:
            weights = kept_weights(x, batch, row)
            result[row] = (weights / weights.sum()).float()
    return result


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logprob and rank of ``token_ids``, and the best ``num_top`` ids and logprobs."""
    logprobs = logits.double().log_softmax(-1)
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    chosen = token_ids.long()[:, None]
    rank = (order == chosen).int().argmax(-1) + 1
    top = order[:, :num_top]
    return (
        logprobs.gather(1, chosen)[:, 0].float(),
        rank.to(torch.int32),
        top.to(torch.int32),
        logprobs.gather(1, top).float(),
    )


def _slice(values: torch.Tensor, offsets: torch.Tensor, row: int) -> torch.Tensor:
    return values[int(offsets[row]) : int(offsets[row + 1])]
