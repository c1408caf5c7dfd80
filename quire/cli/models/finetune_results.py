"""Models that ``quire finetune`` trains and writes, by method, without command and loop."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import quire
from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.config_fields import read_json
from quire.checkpoints.safetensors_writer import TensorData, tensor_data
from quire.core.errors import UnsupportedArchitectureError
from quire.core.plurals import counted
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.quantizing.output import copy_files, write_card, write_config, write_weights
from quire.quantizing.quantization_run import (
    QuantizationJob,
    QuantizationRun,
    in_file_order,
    layer_linears,
)
from quire.quantizing.resumable_run import Unfinished, stored_data
from quire.quantizing.scheme import QuantizationScheme, Recipe, skip_rules
from quire.quantizing.stored_format import FORMATS
from quire.training.finetuning.adapters import AdaptedModel
from quire.training.finetuning.causal_model import load_causal_model
from quire.training.finetuning.finetuning_plan import FinetuningPlan
from quire.training.finetuning.loop import FinetuningProgress
from quire.training.finetuning.merge_trained import Adapter, merged_tensors
from quire.training.finetuning.quantization_aware import RoundedModel
from quire.training.finetuning.training_windows import Windows

if TYPE_CHECKING:
    import torch

#: Folder of a result that holds the adapter where the result is merged.
ADAPTER = "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finetuning:
    """A fine-tuning run as it was asked for.

    Attributes:
        source: The model as it was named on the command line.
        opened, stored: The source, open for reading.
        windows: Windows of text to train on, and to judge by.
        plan: The training.
        asked: Options of the command.
        command: The whole command line.
    """

    source: str
    opened: OpenedCheckpoint
    stored: Checkpoint
    windows: Windows
    plan: FinetuningPlan
    asked: dict[str, Any]
    command: str

    @property
    def folder(self) -> Path:
        """The source's folder."""
        return self.opened.path

    def rounding(self, folder: Path) -> QuantizationRun:
        """Return the plain rounding of a checkpoint as the options have it."""
        asked = self.asked
        scheme = QuantizationScheme(
            method="rtn",
            bits=asked["bits"],
            group_size=asked["group_size"],
            symmetric=not asked["asymmetric"],
        )
        name = "gptq" if asked["format_name"] == "floats" else asked["format_name"]
        recipe = Recipe(scheme, skip_rules(asked["skip"]))
        return QuantizationRun(folder, QuantizationJob(recipe=recipe, format=FORMATS[name]))


@dataclass(frozen=True, slots=True)
class Trained:
    """A model that is trained.

    Attributes:
        model: The module that the loop computes.
        kind: The same model, with what its method knows.
        modules: The checkpoint's names of the matrices that are trained.
        notices: Lines on what differs from the request.
    """

    model: torch.nn.Module
    kind: RoundedModel | AdaptedModel
    modules: Sequence[str]
    notices: Sequence[str] = field(default=())


def prepare(job: Finetuning) -> Trained:
    """Return the model, ready to be trained.

    Raises:
        ConfigError: The source or an option is not possible.
        ModelLoadError: The source cannot be read.
        UnsupportedArchitectureError: The method does not know such matrices.
    """
    if job.opened.weights.names.linear_is_transposed:
        raise UnsupportedArchitectureError(
            f"[finetune] matrices must be (out, in); got {job.opened.config.architecture}, whose "
            "are not. Use a model of another architecture."
        )
    if job.plan.method == "qat":
        run = job.rounding(job.folder)
        grids = {module: scheme.grid for module, scheme in run.schemes.items()}
        rounded = RoundedModel(load_causal_model(job.folder, job.asked["device"]), grids)
        return Trained(rounded.model, rounded, list(grids), run.notices)
    layers = range(job.opened.config.num_layers)
    modules = [
        module
        for layer in layers
        for linear in layer_linears(job.opened.weights, layer)
        for module in linear.modules
    ]
    model = load_causal_model(job.folder, job.asked["device"])
    adapted = AdaptedModel(model, modules, job.plan)
    return Trained(adapted.model, adapted, modules)


def finish(
    job: Finetuning,
    trained: Trained,
    progress: FinetuningProgress,
    numbers: int,
    work: Path,
    out: Path,
) -> str:
    """Write the result and return a line that says what it is.

    Args:
        job: The run as it was asked for.
        trained: The trained model.
        progress: Progress of the training.
        numbers: Number of weights that were trained.
        work: A folder that is removed in the end.
        out: The folder that the result is written to.
    """
    kind = trained.kind
    if isinstance(kind, RoundedModel):
        said, lines = _write_rounded(job, trained.modules, kind, work, out)
    else:
        said, lines = _write_adapter(job, trained.modules, kind, out)
    write_card(out, _card(job, lines, progress, numbers))
    return said


def _write_rounded(
    job: Finetuning, modules: Sequence[str], kind: RoundedModel, work: Path, out: Path
) -> tuple[str, list[str]]:
    name, asked = job.asked["format_name"], job.asked
    floats = out if name == "floats" else work / "floats"
    floats.mkdir(exist_ok=True)
    tensors = {n: stored_data(job.stored, n) for n in job.opened.weights.shapes()}
    tensors |= {f"{module}.weight": tensor_data(kind.floats(module)) for module in modules}
    groups = "whole rows" if asked["group_size"] == -1 else f"groups of {asked['group_size']}"
    sign = "asymmetric" if asked["asymmetric"] else "symmetric"
    how = f"{asked['bits']} bits, {groups}, {sign}"
    matrices = counted(len(modules), "matrix", "matrices")
    lines = [
        f"Training rounded {matrices} to nearest in each step, as they are now: "
        f"{how}, with gradients straight through the rounding. All other tensors are those of the "
        "source."
    ]
    _write_folder(job.folder, floats, tensors, {"dtype": "float32"})
    if name == "floats":
        lines.append(
            "These are the trained floats. They are meant to be rounded: `quire quantize --method "
            "rtn` with these settings gives the model that was trained."
        )
        return f"{len(modules)} trained matrices, to be rounded to {how}", lines
    from quire.kernels.registry import create_backend
    from quire.llm.stage_bar import stage_bar

    # Those of a run that was stopped here: rounding takes less time than to check them.
    shutil.rmtree(work / "rounded", ignore_errors=True)
    run = job.rounding(floats)
    result = run.execute(
        create_backend("cpu", threads=asked["threads"] or 1),
        Unfinished(work / "rounded", run.identity, "finetune"),
        stage_bar,
    )
    write_weights(out, result.tensors, lambda count: None)
    copy_files(out, job.folder)
    write_config(out, job.folder, result.config, result.model_config)
    lines.append(f"They are stored as {name}, as they were when the training ended.")
    return f"{counted(len(modules), 'matrix', 'matrices')} of {how}, stored as {name}", lines


def _write_adapter(
    job: Finetuning, modules: Sequence[str], kind: AdaptedModel, out: Path
) -> tuple[str, list[str]]:
    after = kind.hash_base()
    assert after == kind.base_hash, (after, kind.base_hash)
    merge = job.asked["merge"]
    folder = out / ADAPTER if merge else out
    kind.save(folder, job.source)
    matrices = counted(len(modules), "matrix", "matrices")
    lines = [
        f"Adapters of {matrices} have rank {job.plan.rank}, alpha {job.plan.alpha:g}, and were "
        "trained on a base held in NF4 with groups of 64. The base was not changed: the SHA-256 of "
        f"its tensors is {after} before and after."
    ]
    if not merge:
        return f"an adapter of rank {job.plan.rank} for {matrices}", lines
    base = job.asked["merge_into"] or "source"
    (folder / "README.md").unlink(missing_ok=True)
    tensors = {n: stored_data(job.stored, n) for n in job.opened.weights.shapes()}
    tensors |= merged_tensors(job.stored, modules, Adapter(folder), base)
    _write_folder(job.folder, out, tensors, {})
    what = "the source's weights" if base == "source" else "what NF4 leaves of the source's weights"
    lines.append(f"The adapter is added to {what}; alone it is in `{ADAPTER}/`.")
    return f"base and adapter as floats; the adapter alone is in {folder}", lines


def _write_folder(
    source: Path, out: Path, tensors: dict[str, TensorData], changes: dict[str, Any]
) -> None:
    """Write a checkpoint of floats; ``changes`` are those of the source's configuration."""
    write_weights(out, in_file_order(tensors), lambda count: None)
    copy_files(out, source)
    values = read_json(source / "config.json")
    if changes:
        values.pop("torch_dtype", None)
    part = out / "config.json.part"
    text = json.dumps(values | changes, indent=2, ensure_ascii=False)
    part.write_text(f"{text}\n", "utf-8")
    part.replace(out / "config.json")


def _card(job: Finetuning, lines: Sequence[str], progress: FinetuningProgress, numbers: int) -> str:
    """Return the text of ``README.md``."""
    plan, windows = job.plan, job.windows
    tokens = plan.steps * plan.batch_size * plan.sequence_length
    measured = "Nothing was held out of the data: it has under 20 windows."
    if progress.loss_before is not None and progress.loss_after is not None:
        measured = (
            f"Loss of {counted(len(windows.held_out), 'window')} held out of the data, nats per "
            f"token: {progress.loss_before:.4f} before the first step, {progress.loss_after:.4f} "
            "after the last. `quire eval` compares it with other models."
        )
    tag = "lora" if plan.method == "qlora" else "quantization-aware-training"
    parts = [
        f"---\nbase_model: {job.source}\ntags: [{tag}]\n---",
        f"# {Path(job.source).name}, trained by {plan.method}",
        f"Made by Quire {quire.__version__} from `{job.source}`:",
        f"```bash\n{job.command}\n```",
        *lines,
        f"{counted(plan.steps, 'step')} of {counted(plan.batch_size, 'window')} of "
        f"{plan.sequence_length:,} tokens "
        f"({tokens:,} tokens; the data has {windows.training.size:,}), AdamW, learning rate "
        f"{plan.learning_rate:g}, seed {plan.seed}, {numbers:,} numbers trained.",
        "## Measured",
        measured,
    ]
    return "\n\n".join(parts) + "\n"
