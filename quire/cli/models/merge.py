"""``quire merge``: a model and an adapter of it, written as one checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from quire.core.errors import ConfigError
from quire.core.plurals import counted


@click.command()
@click.argument("base", metavar="BASE")
@click.argument("adapter", metavar="ADAPTER")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
def merge(base: str, adapter: str, out: Path) -> None:
    """Add ADAPTER, a folder of PEFT, to BASE (folder, name or hub id); write the folder OUT.

    Weights keep the type that BASE has. Serving the adapter with --enable-lora needs no merge.
    """
    from quire.checkpoints.checkpoint import Checkpoint
    from quire.models.adapters.merge_adapter import merged_tensors
    from quire.models.adapters.peft_folder import read_adapter
    from quire.models.loader import open_checkpoint
    from quire.quantizing.output import copy_files, write_weights
    from quire.quantizing.quantization_run import in_file_order
    from quire.quantizing.resumable_run import stored_data
    from quire.store.float_checkpoint import resolve_float_folder

    folder = resolve_float_folder(base, "merge", "BASE")
    opened = open_checkpoint(folder, "auto", None)
    stored = opened.tensors
    if not isinstance(stored, Checkpoint):
        raise ConfigError(f"[merge] BASE must hold floats; got {folder}, which is quantized.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"[merge] OUT must be a new or an empty folder; got {out}.")
    merged = merged_tensors(stored, opened.weights, read_adapter(adapter))
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: stored_data(stored, name) for name in opened.weights.shapes()} | merged
    total = sum(tensor.nbytes for tensor in tensors.values())
    from quire.llm.stage_bar import stage_bar

    with stage_bar("merge", total) as advance:
        write_weights(out, in_file_order(tensors), lambda count: advance(count, ""))
    copy_files(out, folder)
    shutil.copyfile(folder / "config.json", out / "config.json")
    matrices = counted(len(merged), "matrix", "matrices")
    click.echo(f"{out}: {matrices} of {folder} with {adapter} added")
