"""The part of a model's sizes that each of several ranks has; plain numbers, nothing is read.

D model dim, N query heads, K KV heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.layers.parallel.expert_placement import ExpertDivision, first_placement
from quire.settings.parallel_layout import split


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's ranges; those of all ranks follow each other, but for heads that several have.

    Attributes:
        heads, kv_heads: Heads of attention: each query head once, with the KV head it belongs to;
            all of them on each rank that attends with all.
        width: Range of the middle of a dense MLP.
        shared: Range of the middle of experts that are always on.
        outputs: Range of D that the linears at the end of a layer's part give.
        tokens: Range of V.
        experts: Experts that the rank starts with; only a mixture of experts has any.
        expert_width: Range of the middle of every expert; empty where ranks have whole ones.
    """

    heads: range
    kv_heads: range
    width: range
    shared: range
    outputs: range
    tokens: range
    experts: Sequence[int] = ()
    expert_width: range = range(0)

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Return the configuration of a rank's layers; all that is not divided stays."""
        moe = whole.moe
        if moe is not None:
            inner = len(self.expert_width) or moe.intermediate_size
            moe = replace(moe, shared_size=len(self.shared), intermediate_size=inner)
        return replace(
            whole,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.width),
            moe=moe,
        )


def has_whole_attention(config: ModelConfig, size: int) -> bool:
    """Tell whether each rank attends with all heads: they are too few, or a norm spans them."""
    return config.qk_norm == "rms_of_rows" or size > config.num_heads


def find_shares(
    config: ModelConfig, size: int, unit: int = 1, experts: ExpertDivision | None = None
) -> Sequence[Share]:
    """Return the shares of some ranks.

    Args:
        config: The model.
        size: Number of ranks.
        unit: Number that shares of MLPs are multiples of, if they may be.
        experts: Division of the experts over ranks.

    Raises:
        ConfigError: The ranks are more than the rows of a matrix.
    """
    experts = experts or ExpertDivision()
    limits = {"elements of a hidden state": config.hidden_size, "tokens": config.vocab_size}
    if config.num_dense_layers:
        limits["elements of the MLP"] = config.intermediate_size
    if config.moe is not None and config.moe.shared_size:
        limits["elements of the shared experts"] = config.moe.shared_size
    if config.moe is not None and not experts.whole:
        limits["elements of an expert"] = config.moe.intermediate_size
    kind = min(limits, key=lambda name: limits[name])
    if size > limits[kind]:
        raise ConfigError(
            f"[parallel] --tensor-parallel-size must be at most {limits[kind]}, the {kind} of the "
            f"model; got {size}. Give a smaller one."
        )
    shared = config.moe.shared_size if config.moe else 0
    counts = (config.intermediate_size, shared, config.hidden_size, config.vocab_size)
    units = [unit if unit * size <= count else 1 for count in counts[:2]] + [1, 1]
    ranges = [split(count, size, own) for count, own in zip(counts, units, strict=True)]
    moe, found = config.moe, []
    inner = split(moe.intermediate_size, size) if moe else []
    placement = first_placement(moe.num_experts, size, experts.redundant) if moe else None
    for rank, heads in enumerate(find_heads(config, size)):
        width, always, outputs, tokens = (parts[rank] for parts in ranges)
        share = Share(*heads, width, always, outputs, tokens)
        if placement and experts.whole:
            share = replace(share, experts=placement.of(rank))
        elif moe:
            share = replace(share, experts=range(moe.num_experts), expert_width=inner[rank])
        found.append(share)
    return found


def find_heads(config: ModelConfig, size: int) -> list[tuple[range, range]]:
    """Return each rank's query heads and the KV heads that these belong to."""
    num, kv = config.num_heads, config.num_kv_heads
    if has_whole_attention(config, size):
        return [(range(num), range(kv))] * size
    if config.latent is not None:
        return [(own, own) for own in split(num, size)]
    each = num // kv
    if size <= kv:
        return [(range(own.start * each, own.stop * each), own) for own in split(kv, size)]
    found = []
    for head, ranks in enumerate(split(size, kv)):
        first = head * each
        for own in split(each, len(ranks)):
            found.append((range(first + own.start, first + own.stop), range(head, head + 1)))
    return found
