"""``quire train-heads``: draft heads for a model, from its own answers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.core.errors import ConfigError
from quire.core.plurals import counted

if TYPE_CHECKING:
    from quire.llm.llm import LLM
    from quire.training.acceptance import Acceptance
    from quire.training.rollouts import RollOut
    from quire.training.train import Data

METHODS = ("eagle3", "eagle", "medusa", "mtp")
#: One prompt in this many is answered for the report only.
HELD_OUT_EVERY = 20
#: Tokens of a prompt and its answer.
MAX_MODEL_LEN = 2048


@click.command("train-heads")
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--method", type=click.Choice(METHODS), default="eagle3", show_default=True)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Budget of the training itself; answers and hidden states come before it.",
)
@click.option(
    "--prompts",
    "prompts_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of prompts, one a line: text, or JSON with messages or prompt. Without it the "
    "model writes questions itself.",
)
@click.option(
    "--num-prompts",
    type=click.IntRange(min=HELD_OUT_EVERY),
    default=4000,
    show_default=True,
    help="Number of questions that the model writes.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    default=256,
    show_default=True,
    help="Most tokens of an answer.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of answers, hidden states and checkpoints, from which a stopped run resumes.  "
    "[default: OUT.work]",
)
@click.option("--depth", type=click.IntRange(1, 16), help="Tokens drafted in training.")
@click.option("--intermediate-size", type=click.IntRange(min=1), help="Width of the layer's MLP.")
@click.option("--own-head", is_flag=True, help="An output matrix of its own (medusa, eagle3).")
@click.option("--threads", type=click.IntRange(min=1),
    help="Threads of torch.  [default: torch's]")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True)
def train_heads(
    model: str, out: Path, prompts_file: Path | None, num_prompts: int, max_tokens: int,
    work: Path | None, threads: int | None, **settings: object,
) -> None:  # fmt: skip
    """Train draft heads for MODEL on its own answers and write them to the folder OUT.

    The target computes on the engine, so any model that quire serves can have heads; only the
    heads are torch. Ctrl-C stops a run, and the same command resumes it.
    """
    _check_torch()
    from quire.llm.stage_bar import stage_bar
    from quire.store.hub import resolve_model
    from quire.training.train import train_head, use_threads
    from quire.training.trainer import Budget
    from quire.training.training_plan import TrainingPlan

    if threads is not None:
        use_threads(threads)
    folder = resolve_model(model)
    work = work or out.with_name(f"{out.name}.work")
    minutes = settings.pop("minutes")
    assert isinstance(minutes, float)
    plan = TrainingPlan(budget=Budget(60 * minutes), **settings)  # type: ignore[arg-type]
    data = _answers(model, prompts_file, num_prompts, max_tokens, work)
    acceptance = train_head(folder, data, plan, work, out, stage_bar)
    _report(acceptance, plan.method, out)


def _check_torch() -> None:
    """Refuse where the extra is missing.

    Raises:
        ConfigError: torch is not installed.
    """
    if find_spec("torch") is None:
        raise ConfigError(
            "[train-heads] training needs torch; got none. pip install 'quire[train]'."
        )


def _answers(
    model: str, prompts_file: Path | None, num_prompts: int, max_tokens: int, work: Path
) -> Data:
    """Return the model's answers, made once for a work folder."""
    from quire.training.rollouts import load_rollouts
    from quire.training.train import Data

    paths = work / "rollouts.npz", work / "held_out.npz"
    if not all(path.exists() for path in paths):
        from quire.llm.llm import LLM
        from quire.training.rollout_prompts import read_prompts, write_prompts

        llm = LLM(model, max_model_len=_context(model))
        if prompts_file is not None:
            prompts = read_prompts(prompts_file, llm.get_tokenizer())
        else:
            questions = counted(num_prompts, "question")
            click.echo(f"[train-heads] the model writes {questions}", err=True)
            prompts = write_prompts(llm, num_prompts)
        _write_answers(llm, prompts, max_tokens, paths)
    return Data(*(load_rollouts(path) for path in paths))


def _context(model: str) -> int:
    """Return the longest roll-out: that of the model, if it is not longer than is needed."""
    from quire.models.config.config_reader import read_model_config
    from quire.store.hub import resolve_model

    return min(MAX_MODEL_LEN, read_model_config(resolve_model(model)).max_position_embeddings)


def _write_answers(
    llm: LLM, prompts: Sequence[list[int]], max_tokens: int, paths: tuple[Path, Path]
) -> None:
    from quire.llm.stage_bar import stage_bar
    from quire.training.rollouts import roll_out, save_rollouts

    held_out = list(prompts[::HELD_OUT_EVERY])
    training = [prompt for i, prompt in enumerate(prompts) if i % HELD_OUT_EVERY]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    with stage_bar("answers", len(prompts)) as advance:

        def on_tokens(count: int) -> None:
            advance(1, "")

        answers = roll_out(llm, training, max_tokens, on_tokens=on_tokens)
        greedy = roll_out(llm, held_out, max_tokens, (0.0,), on_tokens)
    for path, rollouts in zip(paths, (answers, greedy), strict=True):
        _check_answers(rollouts)
        save_rollouts(path, rollouts)


def _check_answers(rollouts: Sequence[RollOut]) -> None:
    """Refuse answers that are too short to learn from.

    Raises:
        ConfigError: No answer has two tokens or more.
    """
    lengths = [len(rollout.token_ids) - rollout.num_prompt_tokens for rollout in rollouts]
    if max(lengths, default=0) < 2:
        raise ConfigError(
            "[train-heads] the model must answer prompts with two tokens or more; got "
            f"{counted(len(rollouts), 'shorter answer')}. Give other or more --prompts."
        )


def _report(acceptance: Acceptance, method: str, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{method}: greedy drafts of held-out answers")
    table.add_column("token of the draft", justify="right")
    table.add_column("equal to the target's", justify="right")
    table.add_column("kept", justify="right")
    for place, (equal, kept) in enumerate(
        zip(acceptance.equal, acceptance.kept, strict=True), start=1
    ):
        table.add_row(str(place), f"{100 * equal:.1f}%", f"{100 * kept:.1f}%")
    console = Console()
    console.print(table)
    console.print(f"{acceptance.tokens_per_round:.2f} tokens a round; written to {out}")
