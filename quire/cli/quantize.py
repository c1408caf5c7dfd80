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
from quire.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from quire.evaluation.documents import Document
    from quire.evaluation.scorer import LocalEncoder
    from quire.quantizing.run import Bar, Result
    from quire.quantizing.scheme import Recipe

METHODS = ("rtn", "gptq", "awq")
FORMATS = ("gptq", "compressed-tensors", "awq")
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--method", type=click.Choice(METHODS), required=True,
    help="rtn rounds; gptq and awq look at calibration text.")  # fmt: skip
@click.option("--bits", type=int, default=4, show_default=True, metavar="2|3|4|8")
@click.option("--group-size", type=int, default=128, show_default=True, metavar="N",
    help="Inputs that share a scale; -1 for all of a row.")  # fmt: skip
@click.option("--asymmetric/--symmetric", default=None,
    help="A zero for each group, too.  [default: with --format awq]")  # fmt: skip
@click.option("--act-order", is_flag=True, help="gptq: inputs by their size, the largest first.")
@click.option("--damping", type=float, default=0.01, show_default=True, metavar="F",
    help="gptq: share of the inputs' mean square that is added.")  # fmt: skip
@click.option("--format", "format_name", type=click.Choice(FORMATS),
    help="What it is stored as.  [default: awq with --method awq, else gptq]")  # fmt: skip
@click.option("--calibration", type=FILE, metavar="FILE",
    help="Text, or .jsonl with text or messages.  [default: a sample in the package]")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1), default=128, show_default=True, metavar="N")
@click.option("--sample-length", type=click.IntRange(min=2), default=512, show_default=True,
    metavar="N", help="Tokens of a sample.")  # fmt: skip
@click.option("--skip", multiple=True, metavar="PATTERN", help="Leave such matrices floats.")
@click.option("--recipe", type=FILE, metavar="FILE", help="TOML: settings by pattern of name.")
@click.option("--measure", type=FILE, metavar="FILE",
    help="Compare with SOURCE on a text, for the model card.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="[default: all cores]")
def quantize(source: str, out: Path, **asked: Any) -> None:
    """Write SOURCE (folder, name or hub id of float safetensors) to the folder OUT in few bits.

    One layer is in memory at a time. The same command goes on with a run that was stopped.
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

    name = asked["format_name"] or ("awq" if asked["method"] == "awq" else "gptq")
    if asked["asymmetric"] is None:
        asked["asymmetric"] = name == "awq"
    recipe = _recipe(asked)
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
    from quire.quantizing.scheme import Recipe, Scheme, read_rules, skip_rules

    default = Scheme(
        method=asked["method"],
        bits=asked["bits"],
        group_size=asked["group_size"],
        symmetric=not asked["asymmetric"],
        act_order=asked["act_order"],
        damping=asked["damping"],
    )
    rules = skip_rules(asked["skip"])
    if asked["recipe"] is not None:
        rules += read_rules(asked["recipe"])
    return Recipe(default, rules)


def _samples(
    folder: Path, uses_inputs: bool, asked: dict[str, Any]
) -> tuple[list[np.ndarray], str]:
    """Return calibration samples, and where they are from; none where no method looks at them."""
    if not uses_inputs:
        if asked["calibration"] is not None:
            raise ConfigError(
                "[quantize] --calibration must come with a method that looks at it; got --method "
                "rtn. Leave it out."
            )
        return [], ""
    from quire.evaluation.documents import read_documents
    from quire.evaluation.scorer import LocalEncoder, start_tokens
    from quire.models.config_reader import read_model_config
    from quire.quantizing.samples import choose_samples
    from quire.text.tokenizer import load_tokenizer

    flag = "[quantize] --calibration"
    path = asked["calibration"] or _built_in(folder)
    documents = read_documents(path, flag)
    if asked["calibration"] is None and path.parent.parent != folder:
        # Another model's template may not take conversations.
        documents = [document for document in documents if document.text is not None]
        click.echo("quire: calibrated on the package's own text; --calibration FILE", err=True)
    encoder = LocalEncoder(load_tokenizer(folder), None)
    start = start_tokens(encoder)
    texts = [_tokens(document, encoder, start) for document in documents]
    limit = read_model_config(folder).max_position_embeddings
    length = min(asked["sample_length"], limit)
    samples = choose_samples(texts, asked["samples"], length, start)
    if len(samples) < asked["samples"] or length < asked["sample_length"]:
        click.echo(
            f"quire: calibrated on {len(samples)} samples of {len(samples[0])} tokens, which is "
            "all that the text and the model's context give",
            err=True,
        )
    return samples, f"{len(samples)} samples of {len(samples[0])} tokens of {path.name}"


def _tokens(document: Document, encoder: LocalEncoder, start: tuple[int, ...]) -> list[int]:
    from quire.core.errors import RequestError

    try:
        if document.messages is None:
            ids = encoder.encode(document.text or "", False)
        else:
            ids = encoder.encode_chat(document.messages, False)
    except RequestError as error:
        raise ConfigError(
            f"[quantize] --calibration must hold texts that can be tokenized; got {error} in line "
            f"{document.line}."
        ) from error
    return ids[len(start) :] if start and tuple(ids[: len(start)]) == start else ids


def _built_in(folder: Path) -> Path:
    """Return the text that lies with a model, else quire-tiny's."""
    from quire.models.hub import resolve_model

    places = (folder, resolve_model("quire-tiny"))
    paths = [place / "eval" / "calibration.jsonl" for place in places]
    return next((path for path in paths if path.is_file()), paths[-1])


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
