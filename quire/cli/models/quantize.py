"""``quire quantize``: a checkpoint of floats to one of few bits, in a layout that others read."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.core.errors import ConfigError
from quire.core.plurals import counted
from quire.quantizing.methods import METHODS

if TYPE_CHECKING:
    import numpy as np

    from quire.quantizing.scheme import Recipe

FORMATS = tuple(dict.fromkeys(form for method in METHODS.values() for form in method.formats))
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--method", type=click.Choice([*METHODS]), required=True,
    help=f"{'; '.join(f'{name} {method.about}' for name, method in METHODS.items())}.")  # fmt: skip
@click.option("--bits", type=int, metavar="2|3|4|8",
    help="Bits of a weight.  [default: 4; 2 with quip]")  # fmt: skip
@click.option("--group-size", type=int, metavar="N",
    help="Inputs that share a scale; -1 for all of a row.  [default: 128]")  # fmt: skip
@click.option("--asymmetric/--symmetric", default=None,
    help="Store a zero for each group, too.  [default: with --format awq]")  # fmt: skip
@click.option("--act-order", is_flag=True, default=None,
    help="gptq: round the weights of the largest inputs first.")  # fmt: skip
@click.option("--group-aware", is_flag=True, default=None,
    help="gptq: the same in each group, and groups by their largest input.")  # fmt: skip
@click.option("--true-sequential", is_flag=True, default=None,
    help="gptq: calibrate a matrix after those before it in its layer.")  # fmt: skip
@click.option("--duo-scaling", is_flag=True, default=None,
    help="awq: look at the sizes of weights, too.")  # fmt: skip
@click.option("--clip/--no-clip", default=None,
    help="awq: look for smaller ranges of groups.  [default: clip]")  # fmt: skip
@click.option("--damping", type=float, metavar="F",
    help="gptq, quip: share of inputs' mean square that is added.  [default: 0.01]")  # fmt: skip
@click.option("--scales", type=click.Choice(["channel", "tensor", "block"]),
    help="fp8: weights that share a scale; block is 128 x 128.  [default: channel]")  # fmt: skip
@click.option("--static-inputs", is_flag=True, default=None,
    help="fp8: store a scale for the inputs of each matrix, from calibration text.")  # fmt: skip
@click.option("--smoothing", type=float, metavar="F",
    help="smoothquant: part of inputs' range that weights take over.  [default: 0.5]")  # fmt: skip
@click.option("--double-quant/--plain-scales", default=None,
    help="nf4, fp4: round scales to bytes, too.  [default: double-quant]")  # fmt: skip
@click.option("--sparse", type=float, metavar="F",
    help="Share of weights that tables leave floats, such as 0.0045.  [default: 0]")  # fmt: skip
@click.option("--format", "format_name", type=click.Choice(FORMATS),
    help="Format of the result.  [default: the method's usual one]")  # fmt: skip
@click.option("--calibration", type=FILE, metavar="FILE",
    help="Text, or .jsonl with text or messages.  [default: a sample in the package]")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1), metavar="N",
    help="Samples of the calibration text.  [default: 128]")  # fmt: skip
@click.option("--sample-length", type=click.IntRange(min=2), metavar="N",
    help="Tokens of a sample.  [default: 512]")  # fmt: skip
@click.option("--statistics", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Folder that keeps sums of the unquantized model's inputs for later runs.")  # fmt: skip
@click.option("--skip", multiple=True, metavar="PATTERN",
    help="Leave matrices of such names floats.")  # fmt: skip
@click.option("--quantize-head", is_flag=True,
    help="Quantize the output head, too; with --format gptq and compressed-tensors.")  # fmt: skip
@click.option("--recipe", type=FILE, metavar="FILE", help="TOML: settings by pattern of name.")
@click.option("--measure", type=FILE, metavar="FILE",
    help="Compare with SOURCE on a text, for the model card.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
    help="Compute threads.  [default: all cores]")  # fmt: skip
def quantize(source: str, out: Path, **asked: Any) -> None:
    """Write SOURCE (folder, name or hub id of float safetensors) to the folder OUT in few bits.

    One layer is in memory at a time. The same command resumes a run that was stopped.
    GGUF files, K-types included, are written by quire convert.
    """
    from quire.llm.stage_bar import stage_bar
    from quire.quantizing.quantization_run import QuantizationJob
    from quire.quantizing.quantize_checkpoint import Order, quantize_checkpoint
    from quire.quantizing.stored_format import FORMATS as STORED
    from quire.store.float_checkpoint import resolve_float_folder

    recipe = _recipe(asked)
    name = asked["format_name"] or recipe.default.default_format
    folder = resolve_float_folder(source, "quantize", "SOURCE")
    samples, calibration = _samples(folder, recipe.uses_inputs, asked)
    order = Order(
        job=QuantizationJob(
            recipe=recipe, format=STORED[name], samples=samples, statistics=asked["statistics"]
        ),
        source=source,
        command=shlex.join(["quire", *sys.argv[1:]]),
        calibration=calibration,
        threads=asked["threads"],
    )
    with _told_to_go_on():
        measure = _measure(folder, out, asked["measure"])
        result = quantize_checkpoint(folder, out, order, stage_bar, _tell, measure)
    size = sum(tensor.nbytes for tensor in result.tensors.values())
    matrices = counted(len(result.schemes), "matrix", "matrices")
    click.echo(f"{out}: {size / 1e6:,.1f} MB, {matrices} quantized")


@contextlib.contextmanager
def _told_to_go_on() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost but the layer in work."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("quire: interrupted; the same command resumes after the last layer", err=True)
        raise click.exceptions.Exit(130) from None


def _tell(notice: str) -> None:
    click.echo(f"quire: {notice}", err=True)


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
    return Recipe(default, rules, asked["quantize_head"])


def _samples(
    folder: Path, uses_inputs: bool, asked: dict[str, Any]
) -> tuple[list[np.ndarray], str]:
    """Return calibration samples, and where they are from; none where no method looks at them."""
    if not uses_inputs:
        for name in ("calibration", "samples", "sample_length", "statistics"):
            if asked[name] is not None:
                raise ConfigError(
                    f"[quantize] --{name.replace('_', '-')} must come with a method that looks at "
                    f"calibration text; got --method {asked['method']}. Leave it out."
                )
        return [], ""
    from quire.quantizing.inputs.calibration import Calibration, calibration_samples

    wanted = Calibration(
        text=asked["calibration"], count=asked["samples"], length=asked["sample_length"]
    )
    return calibration_samples(folder, wanted, _tell)


def _measure(folder: Path, out: Path, text: Path | None) -> Callable[[], list[str]]:
    """Return what compares the result with its source, on a text if there is one."""
    if text is None:
        return list
    from quire.llm.stage_bar import stage_bar
    from quire.quantizing.compare import compare_with_source

    return lambda: compare_with_source(folder, out, text, stage_bar)
