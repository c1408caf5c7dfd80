"""``quire bench quant``: weight formats side by side: memory, speed and quality."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.cli.flags.engine_flags import CountType
from quire.core.errors import ConfigError
from quire.core.model.quantization_names import QUANTIZATIONS

if TYPE_CHECKING:
    from quire.evaluation.formats.candidate import ComparedModel

FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
COUNT = CountType(False, minimum=1)
#: In a model's folder: what it is judged by.
TEXT = Path("eval") / "heldout.txt"


@click.command("quant", short_help="Compare weight formats: memory, speed, quality.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL [MODEL]...")
@click.option("--formats", metavar="NAMES",
    help="Formats that the first MODEL is also rounded to at load, by commas: "
    f"{', '.join(QUANTIZATIONS)}.")  # fmt: skip
@click.option("--batch-sizes", default="1,8,32", show_default=True, metavar="NUMBERS",
    help="Sequences of the steps that decode, by commas.")  # fmt: skip
@click.option("--prompt-len", type=COUNT, default=128, show_default=True, metavar="N",
    help="Tokens of the prompt.")  # fmt: skip
@click.option("--output-len", type=COUNT, default=32, show_default=True, metavar="N",
    help="Steps that decode after the prompt.")  # fmt: skip
@click.option("--rounds", type=COUNT, default=5, show_default=True, metavar="N",
    help="Rounds over all models in turn.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0), default=0.25, show_default=True,
    help="Seconds of each figure in each round, at least.")  # fmt: skip
@click.option("--perplexity", "text", type=FILE, metavar="FILE",
    help="Text to judge by, or .jsonl.  [default: MODEL/eval/heldout.txt]")  # fmt: skip
@click.option("--no-quality", is_flag=True, help="Measure memory and speed alone.")
@click.option("--window", type=COUNT, metavar="N", help="Tokens that are seen together.  [512]")
@click.option("--max-tokens", type=COUNT, metavar="N", help="Most tokens of the text.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    default="auto", show_default=True,
    help="Element type of weights that are floats.")  # fmt: skip
@click.option("--activations", type=click.Choice(["checkpoint", "int8", "int16", "fp32"]),
    default="checkpoint", show_default=True,
    help="Activations of quantized linears.")  # fmt: skip
@click.option("--threads", type=COUNT, metavar="N",
    help="Compute threads.  [default: all cores]")  # fmt: skip
@click.option("--json", "json_file", type=FILE, metavar="FILE",
    help="Write all figures as JSON; - prints them in place of the tables.")  # fmt: skip
@click.option("--plot", type=FILE, metavar="FILE",
    help="Write a picture (.png, .svg, .pdf); needs matplotlib.")  # fmt: skip
def quant(
    models: tuple[str, ...],
    formats: str | None,
    batch_sizes: str,
    text: Path | None,
    no_quality: bool,
    json_file: Path | None,
    plot: Path | None,
    **asked: Any,
) -> None:
    """Compare models in memory, speed and quality with the first one.

    A MODEL is a folder, a GGUF file or a name. All of them are in memory at once and are timed in
    turn, round after round: the steps of a prompt, and steps that decode a token of each sequence,
    without scheduler and sampling. Figures are medians of the rounds. Quality is perplexity with
    its 95% interval, and divergence from the first MODEL.
    """
    from quire.bench.plot_file import check_plot
    from quire.bench.quant_plot import draw
    from quire.cli.measure.bench_quant_tables import show
    from quire.evaluation.formats.compare_formats import FormatsTask, compare_formats
    from quire.llm.progress import loading_bar
    from quire.llm.stage_bar import stage_bar

    if plot is not None:
        check_plot(plot)
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigError(f"[bench] --json must be in a folder that exists; got {json_file}.")
    settings = {name: asked.pop(name) for name in ("dtype", "activations", "threads")}
    candidates = create_candidates(models, _names(formats), settings)
    text, why_not = _text(text, no_quality, candidates)
    task = FormatsTask(batches=_batches(batch_sizes), text=text, **asked)
    document = {
        **_facts(candidates, task.prompt_len, task.output_len, task.rounds),
        "quality_not_measured": why_not,
        **compare_formats(candidates, task, stage_bar, loading_bar),
    }
    written = json.dumps(document, ensure_ascii=False, indent=1)
    if json_file is not None and str(json_file) == "-":
        click.echo(written)
    else:
        show(document)
    if json_file is not None and str(json_file) != "-":
        json_file.write_text(written + "\n", encoding="utf-8")
        click.echo(f"written: {json_file}", err=True)
    if plot is not None:
        draw(document, plot)
        click.echo(f"written: {plot}", err=True)


def create_candidates(
    models: Sequence[str], formats: Sequence[str], settings: dict[str, Any]
) -> list[ComparedModel]:
    """Return the first model, the same in each of ``formats``, and the other models.

    Args:
        models: Models as named on the command line.
        formats: Names of ``--quantization``.
        settings: The engine's settings, the same for each candidate. Settings that only quantized
            weights use are left out where weights are floats.

    Raises:
        ConfigError: Two candidates are the same, or a model is not there.
    """
    from quire.checkpoints.quantized.quantization_config import read_quantization
    from quire.evaluation.formats.candidate import ComparedModel
    from quire.settings.config import EngineConfig
    from quire.store.hub import resolve_model

    wanted = [(models[0], name) for name in (None, *formats)]
    wanted += [(model, None) for model in models[1:]]
    found: list[ComparedModel] = []
    for model, name in wanted:
        folder = resolve_model(model)
        own = dict(settings)
        if name is None and not folder.is_file() and read_quantization(folder) is None:
            del own["activations"]
        config = EngineConfig.from_keywords(model=model, quantization=name, **own)
        label = model.rstrip("/").rpartition("/")[2]
        label = label if name is None else f"{label} {name}"
        if label in [other.label for other in found]:
            label = model if name is None else f"{model} {name}"
        if label in [other.label for other in found]:
            raise ConfigError(f"[bench] models must differ; got {label} twice.")
        found.append(ComparedModel(label, folder, config))
    return found


def _names(formats: str | None) -> list[str]:
    names = [] if formats is None else [name.strip() for name in formats.split(",")]
    for name in names:
        if name not in QUANTIZATIONS:
            raise click.UsageError(
                f"[bench] --formats must be of {', '.join(QUANTIZATIONS)}, by commas; got {name!r}."
            )
    return names


def _batches(text: str) -> tuple[int, ...]:
    """Return numbers by commas; what is not a number becomes 0, which is refused with the rest."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)


def _text(
    text: Path | None, no_quality: bool, candidates: Sequence[ComparedModel]
) -> tuple[Path | None, str | None]:
    """Return the text to judge by; without one, None and the reason."""
    if no_quality:
        if text is not None:
            raise click.UsageError("--no-quality judges by no text; got --perplexity as well.")
        return None, "--no-quality"
    places = (candidate.folder / TEXT for candidate in candidates)
    text = text or next((place for place in places if place.is_file()), None)
    return text, None if text else f"no --perplexity FILE, and no {TEXT} with a model"


def _facts(
    candidates: Sequence[ComparedModel], prompt_len: int, output_len: int, rounds: int
) -> dict[str, Any]:
    from quire.system.machine import read_machine
    from quire.system.processor import name_processor

    threads = candidates[0].config.parallel.threads
    return {
        "reference": candidates[0].label,
        "processor": name_processor(),
        "threads": threads or read_machine().num_cores,
        "prompt_len": prompt_len,
        "output_len": output_len,
        "num_rounds": rounds,
    }
