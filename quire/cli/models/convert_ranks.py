"""``quire convert`` with -tp or -pp: a checkpoint folder to a folder of files of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from quire.core.errors import ConfigError
from quire.settings.parallel_options import ParallelOptions


def convert_ranks(model: str, out: Path, options: ParallelOptions, force: bool) -> None:
    """Write a model's tensors divided over ranks, with all that lies next to them.

    Raises:
        ConfigError: OUT is there and is not to be replaced, or cannot be written.
        ModelLoadError: The model cannot be read.
    """
    from quire.llm.progress import loading_bar
    from quire.models.shards.rank_writer import rank_files_of, write_ranks
    from quire.quantizing.output import copy_files
    from quire.store.hub import resolve_model

    layout = options.layout
    if layout.size < 2:
        raise ConfigError(
            "[convert] --tensor-parallel-size or --pipeline-parallel-size must be at least 2; got "
            f"{layout.tensor} and {layout.pipeline}."
        )
    options.check()
    folder = resolve_model(model)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"[convert] OUT must be a folder for ranks' files; got {out}.")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise ConfigError(
            f"[convert] OUT must be empty; got {out}. Give --force to replace what is in it."
        )
    if out.is_dir() and folder.resolve() == out.resolve():
        raise ConfigError(f"[convert] OUT must be another folder than MODEL; got {out}.")
    try:
        out.mkdir(exist_ok=True)
        with loading_bar() as on_progress:
            sizes = write_ranks(folder, out, layout, options.enable_expert_parallel, on_progress)
        copy_files(out, folder)
        shutil.copyfile(folder / "config.json", out / "config.json")
    except OSError as error:
        raise ConfigError(f"[convert] OUT must be writable; got {out}: {error.strerror}.") from None
    for name, nbytes in zip(rank_files_of(layout.size), sizes, strict=False):
        click.echo(f"{out / name}: {nbytes / 1e6:,.1f} MB")
