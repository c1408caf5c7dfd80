"""The division of a model between ranks; plain numbers.

Rank ``stage * tensor + shard``: the shards of a stage are neighbours, so that those that talk most
lie next to each other. Rank 0 is the driver: it plans, samples and computes the first part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.errors import ConfigError
from quire.core.plurals import counted, listed


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Ranks of one engine.

    Attributes:
        tensor: Number of shards of each layer.
        pipeline: Number of stages of consecutive layers.
        counts: Number of layers of each stage; empty where they are divided evenly.
    """

    tensor: int = 1
    pipeline: int = 1
    counts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.pipeline

    def place(self, rank: int) -> tuple[int, int]:
        """Return a rank's stage and shard."""
        return divmod(rank, self.tensor)

    def stage_ranks(self, stage: int) -> list[int]:
        """Return the ranks of a stage, by shard."""
        return list(range(stage * self.tensor, (stage + 1) * self.tensor))

    @property
    def groups(self) -> list[list[int]]:
        """Ranks that share layers, where those are not all ranks."""
        if self.tensor == 1 or self.pipeline == 1:
            return []
        return [self.stage_ranks(stage) for stage in range(self.pipeline)]

    def stage_layers(self, num_layers: int) -> list[range]:
        """Return each stage's layers: every layer once.

        Where no counts are given, they differ by one at most. Stages in the middle get one more
        first: the first and the last also have the embedding and the head.

        Raises:
            ConfigError: The counts are not those of as many layers, or a stage would have none.
        """
        share, more = divmod(num_layers, self.pipeline)
        stages = sorted(range(self.pipeline), key=lambda s: (s in (0, self.pipeline - 1), s))
        counts = [share] * self.pipeline
        for stage in stages[:more]:
            counts[stage] += 1
        if self.counts:
            counts = list(self.counts)
        if self.pipeline > num_layers:
            raise ConfigError(
                f"[config] --pipeline-parallel-size must be at most {num_layers}, the layers of "
                f"the model; got {self.pipeline}."
            )
        if sum(counts) != num_layers:
            given = ",".join(map(str, counts))
            raise ConfigError(
                f"[config] --stage-layers must be the {counted(num_layers, 'layer')} of the model "
                f"in all; got {given}, which are {sum(counts)}."
            )
        starts = [sum(counts[:stage]) for stage in range(self.pipeline)]
        return [range(start, start + n) for start, n in zip(starts, counts, strict=True)]

    def lines(self, num_layers: int) -> Sequence[str]:
        """Return the map of ranks, a line for each stage."""
        found = []
        for stage, layers in enumerate(self.stage_layers(num_layers)):
            ranks = listed("rank", self.stage_ranks(stage))
            own = f"layers {layers[0]} to {layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}"
            parts = "whole layers" if self.tensor == 1 else f"{self.tensor} shards of each layer"
            found.append(f"stage {stage}: {own}, {ranks}: {parts}")
        return found


def split(count: int, parts: int, unit: int = 1) -> list[range]:
    """Divide ``count`` things into ranges of whole units, the first ones at most a unit longer.

    The last unit may be cut short. Ranges are empty where there are fewer units than parts.
    """
    units = -(-count // unit)
    share, more = divmod(units, parts)
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + (share + (part < more)) * unit)
    return [range(min(a, count), min(b, count)) for a, b in zip(ends, ends[1:], strict=False)]
