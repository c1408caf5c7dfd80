"""``quire finetune``: training of rounded weights, or of adapters on an NF4 base."""

from __future__ import annotations

import hashlib
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.core.errors import ConfigError

if TYPE_CHECKING:
    from quire.cli.models.finetune_results import Finetuning
    from quire.models.opened_checkpoint import OpenedCheckpoint
    from quire.training.finetuning.finetuning_plan import FinetuningPlan
    from quire.training.finetuning.training_windows import Windows

METHODS = ("qat", "qlora")
FORMATS = ("gptq", "compressed-tensors", "awq", "floats")
BASES = ("source", "nf4")
#: Options that only one method has, and what they are where they are not given.
DEFAULTS: dict[str, dict[str, Any]] = {
    "qat": {"bits": 4, "group_size": 128, "asymmetric": None, "format_name": "gptq", "skip": ()},
    "qlora": {"rank": 16, "alpha": 32, "merge": None, "merge_into": None},
}
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--method", type=click.Choice(METHODS), required=True,
    help="qat trains rounded weights; qlora adapters on a frozen base in NF4.")  # fmt: skip
@click.option("--data", type=FILE, required=True, metavar="FILE",
    help="Text, or .jsonl with text or messages.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True, metavar="N")
@click.option("--learning-rate", type=float, default=1e-4, show_default=True, metavar="F")
@click.option("--batch-size", type=click.IntRange(min=1), default=4, show_default=True,
    metavar="N", help="Windows of a step.")  # fmt: skip
@click.option("--sequence-length", type=click.IntRange(min=2), default=512, show_default=True,
    metavar="N", help="Tokens of a window.")  # fmt: skip
@click.option("--bits", type=int, metavar="2|3|4|8",
    help="qat: bits of a weight.  [default: 4]")  # fmt: skip
@click.option("--group-size", type=int, metavar="N",
    help="qat: inputs that share a scale; -1 for all of a row.  [default: 128]")  # fmt: skip
@click.option("--asymmetric/--symmetric", default=None,
    help="qat: store a zero for each group, too.  [default: with --format awq]")  # fmt: skip
@click.option("--format", "format_name", type=click.Choice(FORMATS),
    help="qat: format of the result; floats are not rounded yet.  [default: gptq]")  # fmt: skip
@click.option("--skip", multiple=True, metavar="PATTERN",
    help="qat: leave matrices of such names alone.")  # fmt: skip
@click.option("--rank", type=click.IntRange(min=1), metavar="N",
    help="qlora: rank of the adapters.  [default: 16]")  # fmt: skip
@click.option("--alpha", type=int, metavar="N",
    help="qlora: adapters count alpha / rank times.  [default: 32]")  # fmt: skip
@click.option("--merge", is_flag=True, default=None, help="qlora: write base + adapter as floats.")
@click.option("--merge-into", type=click.Choice(BASES),
    help="qlora: SOURCE's weights, or what NF4 leaves of them.  [default: source]")  # fmt: skip
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
    help="Compute threads.  [default: all cores]")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
def finetune(source: str, out: Path, **asked: Any) -> None:
    """Train SOURCE (folder, name or hub id of float safetensors) on a text; write the folder OUT.

    The same command resumes a run that was stopped.
    """
    _check_extra()
    _settle(asked)
    from quire.checkpoints.checkpoint import Checkpoint
    from quire.cli.models.finetune_results import Finetuning
    from quire.models.loader import open_generating
    from quire.quantizing.resumable_run import Unfinished
    from quire.store.float_checkpoint import resolve_float_folder

    plan = _plan(asked)
    folder = resolve_float_folder(source, "finetune", "SOURCE")
    opened = open_generating(folder, "float32", plan.sequence_length)
    if not isinstance(opened.tensors, Checkpoint):
        raise ConfigError(f"[finetune] SOURCE must hold floats; got {folder}, which is quantized.")
    windows = _windows(folder, asked["data"], plan.sequence_length)
    unfinished = Unfinished(out, _identity(opened, opened.tensors, windows, asked), "finetune")
    job = Finetuning(
        source=source,
        opened=opened,
        stored=opened.tensors,
        windows=windows,
        plan=plan,
        asked=asked,
        command=shlex.join(["quire", *sys.argv[1:]]),
    )
    with unfinished.held():
        _run(job, unfinished.folder, out)
        unfinished.finish()


def _check_extra() -> None:
    """Refuse where the extra is missing.

    Raises:
        ConfigError: A package of it is not installed.
    """
    missing = [name for name in ("torch", "transformers", "peft") if not _is_there(name)]
    if missing:
        raise ConfigError(
            f"[finetune] training needs torch, transformers and peft; got no "
            f"{' and no '.join(missing)}. pip install 'quire[train]'."
        )


def _is_there(name: str) -> bool:
    return (
        name in sys.modules
        and sys.modules[name] is not None
        or (name not in sys.modules and find_spec(name) is not None)
    )


def _settle(asked: dict[str, Any]) -> None:
    """Fill in options that were not given, and refuse those of the other method.

    Raises:
        ConfigError: An option of the other method is given; it is named.
    """
    method = asked["method"]
    for owner, defaults in DEFAULTS.items():
        for name, default in defaults.items():
            if owner == method:
                asked[name] = default if asked[name] in (None, ()) else asked[name]
            elif asked[name] not in (None, ()):
                flag = name.removesuffix("_name").replace("_", "-")
                raise ConfigError(
                    f"[finetune] --{flag} must come with --method {owner}; got --method {method}. "
                    "Leave it out."
                )
    if method == "qat" and asked["asymmetric"] is None:
        asked["asymmetric"] = asked["format_name"] == "awq"
    if asked["merge_into"] is not None and not asked["merge"]:
        raise ConfigError("[finetune] --merge-into must come with --merge; got none. Add it.")


def _plan(asked: dict[str, Any]) -> FinetuningPlan:
    from quire.training.finetuning.finetuning_plan import FinetuningPlan

    return FinetuningPlan(
        method=asked["method"],
        steps=asked["steps"],
        learning_rate=asked["learning_rate"],
        batch_size=asked["batch_size"],
        sequence_length=asked["sequence_length"],
        seed=asked["seed"],
        rank=asked["rank"] or 0,
        alpha=asked["alpha"] or 0,
    )


def _windows(folder: Path, data: Path, length: int) -> Windows:
    from quire.evaluation.documents import read_documents
    from quire.evaluation.scorer import LocalEncoder, encode_document
    from quire.text.tokenizers.tokenizer import load_tokenizer
    from quire.training.finetuning.training_windows import Windows

    encoder, where = LocalEncoder(load_tokenizer(folder), None), "[finetune] --data"
    documents = read_documents(data, where)
    texts = [encode_document(document, encoder, where, special=True) for document in documents]
    return Windows(texts, length)


def _identity(
    opened: OpenedCheckpoint, stored: Any, windows: Windows, asked: dict[str, Any]
) -> dict[str, Any]:
    """Return what decides the result."""
    from quire.checkpoints.file_state import file_state

    files = sorted({file.path for file in stored.files.values()})
    states = [(path.name, file_state(path)) for path in files]
    tokens = hashlib.sha256(windows.training.tobytes() + windows.held_out.tobytes())
    others = {k: v for k, v in asked.items() if k not in ("data", "threads")}
    return {
        "source": [[name, *state[2:]] for name, state in states if state is not None],
        "tokens": tokens.hexdigest(),
        "asked": {name: list(v) if isinstance(v, tuple) else v for name, v in others.items()},
    }


def _run(job: Finetuning, work: Path, out: Path) -> None:
    from quire.cli.models.finetune_results import finish, prepare
    from quire.llm.stage_bar import stage_bar
    from quire.system.machine import read_machine
    from quire.training.finetuning.loop import FinetuningProgress, Loop, use_threads

    use_threads(job.asked["threads"] or read_machine().num_cores)
    trained = prepare(job)
    for notice in trained.notices:
        click.echo(f"quire: {notice}", err=True)
    loop = Loop(trained.model, job.windows, job.plan, work / "training.pt")
    with stage_bar("train", job.plan.steps) as advance:
        advance(loop.progress.steps, "")

        def on_step(progress: FinetuningProgress) -> None:
            advance(1, f"step {progress.steps}, loss {progress.loss:.3f}")

        progress = loop.run(on_step)
    said = finish(job, trained, progress, loop.num_trained, work, out)
    if progress.loss_before is not None:
        before, after = progress.loss_before, progress.loss_after
        click.echo(f"loss of {len(job.windows.held_out)} held-out windows: {before:.4f} before, "
                   f"{after:.4f} after")  # fmt: skip
    click.echo(f"{out}: {said}")
