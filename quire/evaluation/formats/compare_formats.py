"""Several models in memory at once, timed in turn and judged next to the first; plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.evaluation.evaluate import Bar, judge
from quire.evaluation.formats.candidate import ComparedModel, describe
from quire.evaluation.formats.round_rates import rate_figures
from quire.evaluation.formats.timed_steps import TimedSteps
from quire.evaluation.local_model import LocalModel
from quire.evaluation.scorer import LocalEncoder
from quire.evaluation.task import Task, TaskTokens, prepare
from quire.evaluation.vocabulary import check_same_vocabulary
from quire.models.config.config_reader import read_generating_config
from quire.models.model_builder import Progress
from quire.text.tokenizers.tokenizer import load_tokenizer

LoadingBar = Callable[[], AbstractContextManager[Progress]]
PROMPT = "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatsTask:
    """The figures to measure.

    Attributes:
        batches: Sequences of the steps that decode.
        prompt_len: Tokens of the prompt.
        output_len: Steps that decode, after a prompt in each sequence.
        rounds: Rounds over all models in turn.
        seconds: Seconds of each figure in each round, at least.
        text: Text that quality is judged by; None for speed alone.
        window: Window of the text; the same as in :class:`~quire.evaluation.task.Task`.
        max_tokens: Most tokens of the text; None for all.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    prompt_len: int = 128
    output_len: int = 32
    rounds: int = 5
    seconds: float = 0.25
    text: Path | None = None
    window: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            ConfigError: A value is out of range; its flag is named.
        """
        for flag, value, least in (
            ("--prompt-len", self.prompt_len, 1),
            ("--output-len", self.output_len, 1),
            ("--rounds", self.rounds, 1),
            ("--seconds", self.seconds, 0),
        ):
            if value < least:
                raise ConfigError(f"[bench] {flag} must be at least {least}; got {value}.")
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            shown = ",".join(map(str, self.batches))
            raise ConfigError(
                f"[bench] --batch-sizes must be different numbers from 1, by commas; got {shown}."
            )

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of what is timed: a prompt, and each number of sequences."""
        return (PROMPT, *map(str, self.batches))


def compare_formats(
    candidates: Sequence[ComparedModel], task: FormatsTask, bar: Bar, loading_bar: LoadingBar
) -> dict[str, Any]:
    """Load the models, time them in turn and judge them.

    Args:
        candidates: Models, at least one; the others are compared with the first.
        task: The figures to measure.
        bar, loading_bar: The progress bars.

    Returns:
        ``formats``, an object for each candidate: its label, what
        :func:`~quire.evaluation.formats.candidate.describe` tells, ``prefill``, ``decode`` by
        number of sequences, and ``quality`` or None.

    Raises:
        ConfigError: Lengths are more than a model takes, vocabularies differ, or the models do not
            fit in memory together.
        ModelLoadError: A checkpoint cannot be used.
    """
    _check_lengths(candidates, task)
    judged = None if task.text is None else _prepare(candidates, task)
    length = task.prompt_len + task.output_len
    longest = length if judged is None else max(length, judged[1].longest)
    models, rows = [], []
    for candidate in candidates:
        start = time.perf_counter()
        with loading_bar() as on_progress:
            models.append(
                LocalModel(
                    candidate.folder, candidate.config, longest, on_progress, max(task.batches)
                )
            )
        loaded = {"load_seconds": time.perf_counter() - start}
        rows.append({"label": candidate.label, **describe(candidate, models[-1]), **loaded})
    rates = _time(models, [candidate.label for candidate in candidates], task, bar)
    for index, row in enumerate(rows):
        figures = {name: rate_figures(rates[index][name], rates[0][name]) for name in task.figures}
        row["prefill"] = figures.pop(PROMPT)
        row["decode"] = figures
        row["quality"] = None
        if judged is not None:
            reference = models[0] if index else None
            named_bar = _named(bar, candidates[index].label)
            row["quality"] = judge(*judged, models[index], reference, named_bar)
    return {"formats": rows}


def _check_lengths(candidates: Sequence[ComparedModel], task: FormatsTask) -> None:
    length = task.prompt_len + task.output_len
    for candidate in candidates:
        limit = read_generating_config(candidate.folder).max_position_embeddings
        if length > limit:
            raise ConfigError(
                f"[bench] --prompt-len and --output-len must be at most {limit} together, the "
                f"context of {candidate.label}; got {length}."
            )
        step = candidate.config.scheduler.max_num_batched_tokens
        if task.prompt_len > step:
            raise ConfigError(
                f"[bench] --prompt-len must be at most {step}, the tokens of a step; got "
                f"{task.prompt_len}."
            )


def _prepare(candidates: Sequence[ComparedModel], task: FormatsTask) -> tuple[Task, TaskTokens]:
    """Return what is judged, in the tokens that all models have."""
    asked = Task(text=task.text, window=task.window, max_tokens=task.max_tokens)
    tokenizers = [load_tokenizer(candidate.folder) for candidate in candidates]
    configs = [read_generating_config(candidate.folder) for candidate in candidates]
    for candidate, config, tokenizer in zip(candidates, configs, tokenizers, strict=True):
        sizes = (config.vocab_size, configs[0].vocab_size)
        if candidate.folder != candidates[0].folder:
            check_same_vocabulary(candidates[0].label, sizes, (tokenizer, tokenizers[0]))
    limit = min(config.max_position_embeddings for config in configs)
    return asked, prepare(asked, LocalEncoder(tokenizers[0], limit))


def _time(
    models: Sequence[LocalModel], labels: Sequence[str], task: FormatsTask, bar: Bar
) -> list[dict[str, list[float]]]:
    """Return each model's rates by figure, of the rounds in their order."""
    rates: list[dict[str, list[float]]] = [{name: [] for name in task.figures} for _ in models]
    total = (task.rounds + 1) * len(task.figures) * len(models)
    with bar("speed", total) as advance:
        timed = [
            TimedSteps(model, task.batches, task.prompt_len, task.output_len) for model in models
        ]
        for number in range(task.rounds + 1):
            for name in task.figures:
                # What goes first meets a colder machine, or a warmer one: it changes every round.
                for place in range(len(models)):
                    index = (number + place) % len(models)
                    rate = timed[index].rate(name, task.seconds if number else 0)
                    if number:  # the first round is warm-up
                        rates[index][name].append(rate)
                    advance(1, f"{labels[index]}: {name}")
    return rates


def _named(bar: Bar, label: str) -> Bar:
    return lambda stage, total: bar(f"{label}: {stage}", total)
