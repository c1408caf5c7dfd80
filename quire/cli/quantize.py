"""``quire quantize``: a checkpoint of floats to one of few bits, in a layout that others read."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import quire
from quire.cli.calibration import calibration_samples
from quire.core.errors import ConfigError
from quire.quantizing.methods import METHODS

if TYPE_CHECKING:
    import numpy as np

    from quire.quantizing.run import Bar, Result
    from quire.quantizing.scheme import Recipe

FORMATS = tuple(dict.fromkeys(form for method in METHODS.values() for form in method.formats))
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--method", type=click.Choice([*METHODS]), required=True,
    help=f"{'; '.join(f'{name} {method.about}' for name, method in METHODS.items())}.")  # fmt: skip
@click.option("--bits", type=int, metavar="2|3|4|8", help="[default: 4; 2 of quip]")
@click.option("--group-size", type=int, metavar="N",
    help="Inputs that share a scale; -1 for all of a row.  [default: 128]")  # fmt: skip
@click.option("--asymmetric/--symmetric", default=None,
    help="A zero for each group, too.  [default: with --format awq]")  # fmt: skip
@click.option("--act-order", is_flag=True, default=None,
    help="gptq: inputs by their size, the largest first.")  # fmt: skip
@click.option("--damping", type=float, metavar="F",
    help="gptq, quip: share of inputs' mean square that is added.  [default: 0.01]")  # fmt: skip
@click.option("--scales", type=click.Choice(["channel", "tensor", "block"]),
    help="fp8: which weights share one; block is 128 x 128.  [default: channel]")  # fmt: skip
@click.option("--static-inputs", is_flag=True, default=None,
    help="fp8: store a scale for the inputs of each matrix, from calibration text.")  # fmt: skip
@click.option("--smoothing", type=float, metavar="F",
    help="smoothquant: how much weights take over of inputs' range.  [default: 0.5]")  # fmt: skip
@click.option("--double-quant/--plain-scales", default=None,
    help="nf4: round scales to bytes, too.  [default: double-quant]")  # fmt: skip
@click.option("--format", "format_name", type=click.Choice(FORMATS),
    help="What it is stored as.  [default: what the method is known by]")  # fmt: skip
@click.option("--calibration", type=FILE, metavar="FILE",
    help="Text, or .jsonl with text or messages.  [default: a sample in the package]")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="[default: 128]")
@click.option("--sample-length", type=click.IntRange(min=2), metavar="N",
    help="Tokens of a sample.  [default: 512]")  # fmt: skip
@click.option("--skip", multiple=True, metavar="PATTERN", help="Leave such matrices floats.")
@click.option("--recipe", type=FILE, metavar="FILE", help="TOML: settings by pattern of name.")
@click.option("--measure", type=FILE, metavar="FILE",
    help="Compare with SOURCE on a text, for the model card.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="[default: all cores]")
def quantize(source: str, out: Path, **asked: Any) -> None:
    """Write SOURCE (folder, name or hub id of float safetensors) to the folder OUT in few bits.

    One layer is in memory at a time. The same command goes on with a run that was stopped.
    GGUF files, K-types included, are written by quire convert.
    """
    from quire.core.machine import read_machine
    from quire.kernels.registry import create_backend
    from quire.llm.stage_bar import stage_bar
    from quire.models.hub import resolve_model
    from quire.quantizing.card import CardFacts, model_card
    from quire.quantizing.output import write_card
    from quire.quantizing.run import Job, Run
    from quire.quantizing.stored_format import FORMATS as STORED
    from quire.quantizing.unfinished import Unfinished

    recipe = _recipe(asked)
    name = asked["format_name"] or recipe.default.default_format
    folder = resolve_model(source)
    if folder.is_file():
        raise ConfigError(f"[quantize] SOURCE must be a folder of safetensors; got file {folder}.")
    samples, calibration = _samples(folder, recipe.uses_inputs, asked)
    run = Run(folder, Job(recipe=recipe, format=STORED[name], samples=samples))
    told = list(run.notices)
    for notice in told:
        click.echo(f"quire: {notice}", err=True)
    unfinished = Unfinished(out, run.identity)
    threads = asked["threads"] or read_machine().num_cores
    with unfinished.held(), _told_to_go_on():
        result = run.execute(create_backend("cpu", threads=threads), unfinished, stage_bar)
        _write(folder, out, result, stage_bar)
        measured = [] if asked["measure"] is None else _measure(folder, out, asked["measure"])
        facts = CardFacts(
            source=source,
            command=shlex.join(["quire", *sys.argv[1:]]),
            version=quire.__version__,
            calibration=calibration,
            measured=measured,
        )
        write_card(out, model_card(facts, result, name))
        unfinished.finish()
    _report(out, result, told)


@contextlib.contextmanager
def _told_to_go_on() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost but the layer in work."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("quire: interrupted; the same command goes on after the last layer", err=True)
        raise click.exceptions.Exit(130) from None


def _recipe(asked: dict[str, Any]) -> Recipe:
    from quire.quantizing.scheme import SETTINGS, Recipe, create_scheme, read_rules, skip_rules

    method, asymmetric = asked["method"], asked["asymmetric"]
    given = {name: asked[name] for name in SETTINGS if asked.get(name) is not None}
    form = asked["format_name"] or METHODS[method].formats[0]
    if asymmetric is None and form == "awq":
        asymmetric = True
    if asymmetric is not None:
        given["symmetric"] = not asymmetric
    default = create_scheme(method, given)
    rules = skip_rules(asked["skip"])
    if asked["recipe"] is not None:
        rules += read_rules(asked["recipe"])
    return Recipe(default, rules)


def _samples(
    folder: Path, uses_inputs: bool, asked: dict[str, Any]
) -> tuple[list[np.ndarray], str]:
    """Return calibration samples, and where they are from; none where no method looks at them."""
    if not uses_inputs:
        for name in ("calibration", "samples", "sample_length"):
            if asked[name] is not None:
                raise ConfigError(
                    f"[quantize] --{name.replace('_', '-')} must come with a method that looks at "
                    f"calibration text; got --method {asked['method']}. Leave it out."
                )
        return [], ""
    return calibration_samples(
        folder, "quantize", asked["calibration"], asked["samples"], asked["sample_length"]
    )


def _write(folder: Path, out: Path, result: Result, bar: Bar) -> None:
    from quire.quantizing.output import copy_files, write_config, write_weights

    total = sum(tensor.nbytes for tensor in result.tensors.values())
    with bar("write", total) as advance:
        write_weights(out, result.tensors, lambda count: advance(count, ""))
    copy_files(out, folder)
    write_config(out, folder, result.config)


def _measure(folder: Path, out: Path, text: Path) -> list[str]:
    """Return what the result is worth next to its source, as lines of a card."""
    from quire.core.config import EngineConfig
    from quire.evaluation.local_model import LocalModel
    from quire.evaluation.run import judge
    from quire.evaluation.scorer import LocalEncoder
    from quire.evaluation.task import Task, prepare
    from quire.llm.stage_bar import stage_bar
    from quire.models.config_reader import read_model_config
    from quire.text.tokenizer import load_tokenizer

    task = Task(text=text)
    limit = read_model_config(folder).max_position_embeddings
    work = prepare(task, LocalEncoder(load_tokenizer(folder), limit))
    models = [
        LocalModel(path, EngineConfig.from_keywords(model=str(path)), work.longest)
        for path in (out, folder)
    ]
    report = judge(task, work, models[0], models[1], stage_bar)
    figures = {
        "perplexity": report["text"]["perplexity"],
        "of the source": report["comparison"]["reference_perplexity"],
        "ratio": report["comparison"]["ratio"],
        "KL divergence, nats": report["comparison"]["divergence"],
        "same best token": report["comparison"]["agreement"],
    }
    rows = [f"| {name} | {_figure(figure)} |" for name, figure in figures.items()]
    title = f"On {text.name}, {report['text']['num_counted']:,} tokens, with 95% intervals:"
    return [title, "\n".join(["| figure | value |", "|---|---|", *rows])]


def _figure(figure: dict[str, Any]) -> str:
    if figure["low"] is None:
        return f"{figure['value']:.4f}"
    return f"{figure['value']:.4f} ({figure['low']:.4f} to {figure['high']:.4f})"


def _report(out: Path, result: Result, told: Sequence[str]) -> None:
    for notice in result.notices:
        if notice not in told:
            click.echo(f"quire: {notice}", err=True)
    size = sum(tensor.nbytes for tensor in result.tensors.values())
    click.echo(f"{out}: {size / 1e6:,.1f} MB, {len(result.schemes)} matrices quantized")
