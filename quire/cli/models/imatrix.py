"""``quire imatrix``: how much errors of each input of a model count, for ``quire convert``."""

from __future__ import annotations

from pathlib import Path

import click

from quire.core.errors import ConfigError
from quire.core.plurals import counted

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("model")
@click.argument("out", type=FILE)
@click.option("--calibration", type=FILE, metavar="FILE",
    help="Text, or .jsonl with text or messages.  [default: a sample in the package]")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1), metavar="N",
    help="Samples of the text.  [default: 128]")  # fmt: skip
@click.option("--sample-length", type=click.IntRange(min=2), metavar="N",
    help="Tokens of a sample.  [default: 512]")  # fmt: skip
@click.option("--statistics", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Folder that keeps sums of inputs for later runs.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
    help="Compute threads.  [default: all cores]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace OUT when it is there.")
def imatrix(
    model: str,
    out: Path,
    calibration: Path | None,
    samples: int | None,
    sample_length: int | None,
    statistics: Path | None,
    threads: int | None,
    force: bool,
) -> None:
    """Write the importance matrix of MODEL (folder, name or hub id of floats) to OUT.

    OUT is a GGUF file that quire convert --imatrix and llama-quantize --imatrix take.
    """
    if out.exists() and not force:
        raise ConfigError(f"[imatrix] OUT must not exist; got {out}. Give --force to replace it.")
    from quire.checkpoints.gguf.importance_matrix import ImportanceMatrix, write_importance_matrix
    from quire.kernels.registry import create_backend
    from quire.llm.stage_bar import stage_bar
    from quire.quantizing.inputs.calibration import Calibration, calibration_samples
    from quire.quantizing.inputs.importance import collect_importance
    from quire.store.float_checkpoint import resolve_float_folder
    from quire.system.machine import read_machine

    folder = resolve_float_folder(model, "imatrix", "MODEL")
    wanted = Calibration(
        text=calibration, count=samples, length=sample_length, where="[imatrix] --calibration"
    )
    chosen, dataset = calibration_samples(folder, wanted, _tell)
    backend = create_backend("cpu", threads=threads or read_machine().num_cores)
    entries = collect_importance(folder, chosen, backend, stage_bar, statistics)
    matrix = ImportanceMatrix(out, entries, dataset, len(chosen), max(map(len, chosen)))
    try:
        write_importance_matrix(out, matrix)
    except OSError as error:
        raise ConfigError(f"[imatrix] OUT must be writable; got {out}: {error.strerror}.") from None
    click.echo(f"{out}: {counted(len(entries), 'tensor')}, {dataset}")


def _tell(notice: str) -> None:
    click.echo(f"quire: {notice}", err=True)
