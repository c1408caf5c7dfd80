"""Roll-outs with the target's hidden states, kept in a file, and batches of them for training.

B sequences, T positions, R starts, S width of the states.

A draft that starts at position p knows tokens 0 .. p and the states before p; its k-th token (from
0) is that of position p + 1 + k. Drafts start at the answer's tokens: the first of them was drawn
by the target. What the target itself makes of position p + k is the label of the k-th token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quire.training.rollouts import RollOut
from quire.training.target import TrainingTarget

#: Bounds of a batch: padded positions, and padded starts.
BATCH_POSITIONS, BATCH_STARTS = 4096, 512


@dataclass(frozen=True, slots=True)
class Batch:
    """Some roll-outs, padded to the right.

    Attributes:
        token_ids: (B, T) int64.
        states: (B, T, S) float32.
        starts: (B, R) int64, positions next to each other; 0 where there is none.
        counts: (B,) int64, starts of each roll-out.
    """

    token_ids: Tensor
    states: Tensor
    starts: Tensor
    counts: Tensor

    def positions(self, depth: int) -> Tensor:
        """Return (B, R), those ``depth`` after the starts, and 0 where :meth:`valid` is false."""
        return (self.starts + depth) * self.valid(depth)

    def valid(self, depth: int) -> Tensor:
        """Return (B, R): whether the token after position ``start + depth`` is known."""
        return torch.arange(self.starts.shape[1]) + depth < self.counts[:, None]


class Examples:
    """Roll-outs and their states.

    Args:
        rollouts: Roll-outs, at least one of them with two tokens of answer.
        path: The states' file, bfloat16 rows one roll-out after the other.
        width: S.

    Attributes:
        num_starts: Drafts that can start in all roll-outs together.
    """

    def __init__(self, rollouts: Sequence[RollOut], path: Path, width: int) -> None:
        lengths = [len(rollout.token_ids) for rollout in rollouts]
        shape = (sum(lengths), width)
        self._states = torch.from_file(
            str(path), shared=False, size=shape[0] * width, dtype=torch.bfloat16
        ).view(shape)
        self._rollouts = rollouts
        self._first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        self._counts = np.array([max(0, _num_starts(rollout)) for rollout in rollouts])
        self.num_starts = int(self._counts.sum())

    def some_states(self, count: int = 4096) -> Tensor:
        """Return the first states, at most ``count`` (T, S) float32."""
        return self._states[:count].float()

    def batches(self, rng: np.random.Generator | None = None) -> Iterator[Batch]:
        """Yield every roll-out with a start once, those of like lengths together.

        In random order with ``rng``.
        """
        lengths = np.array([len(rollout.token_ids) for rollout in self._rollouts])
        noise = np.ones(len(lengths)) if rng is None else rng.uniform(0.9, 1.1, len(lengths))
        order = np.argsort(lengths * noise, kind="stable")
        groups: list[list[int]] = [[]]
        longest = most = 0
        for number in order[self._counts[order] > 0].tolist():
            longest = max(longest, int(lengths[number]))
            most = max(most, int(self._counts[number]))
            size = len(groups[-1]) + 1
            if size > 1 and (size * longest > BATCH_POSITIONS or size * most > BATCH_STARTS):
                groups.append([])
                longest, most = int(lengths[number]), int(self._counts[number])
            groups[-1].append(number)
        if rng is not None:
            rng.shuffle(groups)
        return (self._batch(group) for group in groups)

    def _batch(self, numbers: Sequence[int]) -> Batch:
        rollouts = [self._rollouts[number] for number in numbers]
        counts = torch.from_numpy(self._counts[list(numbers)])
        longest = max(len(rollout.token_ids) for rollout in rollouts)
        token_ids = torch.zeros(len(rollouts), longest, dtype=torch.int64)
        states = torch.zeros(len(rollouts), longest, self._states.shape[1])
        for row, (number, rollout) in enumerate(zip(numbers, rollouts, strict=True)):
            length, first = len(rollout.token_ids), int(self._first[number])
            token_ids[row, :length] = torch.from_numpy(rollout.token_ids)
            states[row, :length] = self._states[first : first + length].float()
        places = torch.arange(int(counts.max()))
        begins = torch.tensor([rollout.num_prompt_tokens for rollout in rollouts])
        starts = (begins[:, None] + places) * (places < counts[:, None])
        return Batch(token_ids, states, starts, counts)


def _num_starts(rollout: RollOut) -> int:
    """Return how many tokens of the answer have a known token after them."""
    return len(rollout.token_ids) - rollout.num_prompt_tokens - 1


def write_states(
    target: TrainingTarget,
    rollouts: Sequence[RollOut],
    path: Path,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> None:
    """Compute the states of roll-outs and write them to a file, replaced whole.

    ``on_tokens`` is called with the positions of each roll-out when they are done.
    """
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        for states in target.states([rollout.token_ids for rollout in rollouts]):
            rounded = torch.from_numpy(np.ascontiguousarray(states)).bfloat16()
            file.write(rounded.view(torch.int16).numpy().tobytes())
            on_tokens(len(states))
    partial.replace(path)
