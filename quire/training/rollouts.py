"""Roll-outs that heads are trained on: the target's own answers to prompts, kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.core.sampling_params import SamplingParams
from quire.llm.llm import LLM

#: Prompts given to the engine at once.
BATCH = 256
#: Every second answer is drawn at this temperature, the others are greedy.
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class RollOut:
    """A prompt and the target's answer.

    Attributes:
        token_ids: (T,) int32, both.
        num_prompt_tokens: Number of the prompt's tokens among them, at least 1.
    """

    token_ids: np.ndarray
    num_prompt_tokens: int


def roll_out(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    temperatures: Sequence[float] = (0.0, TEMPERATURE),
    on_tokens: Callable[[int], None] = lambda count: None,
) -> list[RollOut]:
    """Return the target's answers to prompts; the same prompts give the same answers.

    Args:
        llm: The target.
        prompts: Token ids; those that leave no room for an answer are left out.
        max_tokens: Most tokens of an answer.
        temperatures: Temperatures, which prompts take in turn.
        on_tokens: A function called with the number of tokens of answers as they are done.
    """
    limit = llm.engine.max_model_len
    fitting = [list(prompt) for prompt in prompts if 0 < len(prompt) < limit]
    done: list[RollOut] = []
    for start in range(0, len(fitting), BATCH):
        batch = fitting[start : start + BATCH]
        params = [
            SamplingParams(
                temperature=temperatures[number % len(temperatures)],
                seed=number,
                max_tokens=min(max_tokens, limit - len(prompt)),
            )
            for number, prompt in enumerate(batch, start)
        ]
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in batch], params, False)
        for prompt, output in zip(batch, outputs, strict=True):
            answer = output.outputs[0].token_ids
            done.append(RollOut(np.array(prompt + list(answer), np.int32), len(prompt)))
            on_tokens(len(answer))
    return done


def save_rollouts(path: Path, rollouts: Sequence[RollOut]) -> None:
    """Write roll-outs to a file, replaced whole."""
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        token_ids=np.concatenate([rollout.token_ids for rollout in rollouts]),
        lengths=np.array([len(rollout.token_ids) for rollout in rollouts], np.int32),
        prompts=np.array([rollout.num_prompt_tokens for rollout in rollouts], np.int32),
    )
    partial.replace(path)


def load_rollouts(path: Path) -> list[RollOut]:
    """Read what :func:`save_rollouts` wrote."""
    with np.load(path) as file:
        token_ids, lengths, prompts = file["token_ids"], file["lengths"], file["prompts"]
    parts = np.split(token_ids, np.cumsum(lengths)[:-1])
    return [RollOut(part, int(count)) for part, count in zip(parts, prompts, strict=True)]
