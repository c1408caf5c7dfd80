"""Training of a head from roll-outs; a stopped run resumes from its work folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from quire.core.errors import ConfigError
from quire.models.config.config_reader import read_generating_config
from quire.training.acceptance import Acceptance, draft_all, measure_acceptance
from quire.training.examples import Examples, write_states
from quire.training.head_files import Head, load_head, save_head
from quire.training.recurrent_head import TrainableRecurrentHead
from quire.training.rollouts import RollOut
from quire.training.target import HeadVocabulary, TrainingTarget, load_vocabulary
from quire.training.trainer import Trainer, TrainingProgress
from quire.training.training_plan import TrainingPlan, create_head

#: Opens a bar of (what is done, in all) and returns what moves it, with a remark.
Bar = Callable[[str, float], AbstractContextManager[Callable[[float, str], None]]]


@dataclass(frozen=True, slots=True)
class Data:
    """Roll-outs for training, and greedy ones for the report."""

    training: Sequence[RollOut]
    held_out: Sequence[RollOut]


def train_head(
    target: Path, data: Data, plan: TrainingPlan, work: Path, out: Path, bar: Bar
) -> Acceptance:
    """Train a head, write it to ``out`` and measure what was written.

    Args:
        target: A folder or a GGUF file.
        data: Roll-outs of that target.
        plan: The plan of the training.
        work: Folder of states and checkpoints; a run with the same plan resumes from them.
        out: The folder that ``config.json``, safetensors and ``acceptance.json`` are written to.
        bar: The progress bar.

    Returns:
        Acceptance of the written head on ``data.held_out``, with drafts of ``plan.depth`` tokens or
        at least four.

    Raises:
        ConfigError: The plan does not fit the target, or ``work`` holds a training of another plan.
    """
    config = read_generating_config(target)
    plan = plan.settle(config)
    _check_work(work, plan)
    training, held_out = _examples(target, data, plan, work, bar)
    vocabulary = load_vocabulary(target)
    torch.manual_seed(plan.seed)
    head = create_head(plan, config, vocabulary)
    if isinstance(head, TrainableRecurrentHead):
        head.scale_to(training.some_states())
    trainer = Trainer(
        head,
        training,
        plan.objective(),
        work / f"{plan.method}.pt",
        budget=plan.budget,
        rate=plan.rate,
    )
    with bar(f"training {plan.method}", plan.budget.amount) as advance:
        seen = plan.budget.spent(trainer.progress)
        advance(seen, "")

        def on_step(progress: TrainingProgress) -> None:
            nonlocal seen
            spent = plan.budget.spent(progress)
            advance(spent - seen, f"step {progress.steps}, loss {progress.loss:.3f}")
            seen = spent

        trainer.run(on_step)
    save_head(head, out, str(target.name), config.max_position_embeddings)
    acceptance = measure_folder(out, vocabulary, held_out, num_drafted(plan))
    report = asdict(acceptance) | {"progress": asdict(trainer.progress), "plan": plan.lines()}
    (out / "acceptance.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return acceptance


def use_threads(count: int) -> None:
    """Compute heads on that many threads, and the target's states."""
    torch.set_num_threads(count)


def num_drafted(plan: TrainingPlan) -> int:
    """Return the tokens of the drafts that a report is made of."""
    assert plan.depth is not None
    return plan.depth if plan.method == "medusa" else max(4, plan.depth)


def measure_folder(
    folder: Path, vocabulary: HeadVocabulary, examples: Examples, num_tokens: int
) -> Acceptance:
    """Return the acceptance of a head as it is stored."""
    head: Head = load_head(folder, vocabulary)
    return measure_acceptance(lambda batch: draft_all(head, batch, num_tokens), examples.batches())


def _check_work(work: Path, plan: TrainingPlan) -> None:
    """Write the plan next to its checkpoint, or refuse one that is not that of the checkpoint."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"{plan.method}.json"
    settings = json.dumps(plan.lines(), indent=2) + "\n"
    if (work / f"{plan.method}.pt").exists() and path.read_text("utf-8") != settings:
        raise ConfigError(
            f"[train-heads] the settings must be those of the training in {work}; got others. "
            f"See {path.name} there, or name another work folder."
        )
    path.write_text(settings, encoding="utf-8")


def _examples(
    target: Path, data: Data, plan: TrainingPlan, work: Path, bar: Bar
) -> tuple[Examples, Examples]:
    """Return the examples for training and for the report; states are computed once."""
    name = "-".join(map(str, plan.layers)) or "final"
    parts = {
        work / f"states-{name}.bin": data.training,
        work / f"held-out-{name}.bin": data.held_out,
    }
    missing = {path: rollouts for path, rollouts in parts.items() if not path.exists()}
    config = read_generating_config(target)
    width = (1 + len(plan.layers)) * config.hidden_size
    if missing:
        longest = max(len(r.token_ids) for rollouts in parts.values() for r in rollouts)
        total = sum(len(r.token_ids) for rollouts in missing.values() for r in rollouts)
        source = TrainingTarget(target, plan.layers, longest, torch.get_num_threads())
        with bar("hidden states", total) as advance:
            for path, rollouts in missing.items():
                write_states(source, rollouts, path, lambda count: advance(count, ""))
    training, held_out = (Examples(rollouts, path, width) for path, rollouts in parts.items())
    return training, held_out
