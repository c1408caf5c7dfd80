"""``--lora``: an adapter for the answers of ``run``, ``chat`` and ``generate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from quire.settings.config import EngineConfig


def _folder(ctx: click.Context, param: click.Parameter, given: Path | None) -> Path | None:
    """Return the folder of an adapter, of one in the package by its name."""
    if given is None:
        return None
    from quire.models.adapters.peft_folder import adapter_folder

    return adapter_folder(given)


lora_option = click.option(
    "--lora",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    callback=_folder,
    help="adapter for the answers, as PEFT or quire finetune writes them",
)


def largest_rank(folder: Path) -> int:
    """Return the largest rank of an adapter's matrices.

    Raises:
        ModelLoadError: The folder holds none.
    """
    from quire.models.adapters.peft_settings import read_settings

    settings = read_settings(folder)
    own = settings.values.get("rank_pattern") or {}
    return int(max([settings.rank(), *own.values()]))


def with_adapter(config: EngineConfig, folder: Path | None) -> EngineConfig:
    """Return the settings of an engine that takes the adapter; the same ones without.

    Raises:
        ModelLoadError: The folder holds none.
    """
    if folder is None:
        return config
    rank = max(config.adapters.max_lora_rank, largest_rank(folder))
    return replace(config, adapters=replace(config.adapters, enable_lora=True, max_lora_rank=rank))


def adapter_attributes(folder: Path | None) -> dict[str, Any]:
    """Return what a request carries of the adapter, as :meth:`RequestReader.read` takes it."""
    if folder is None:
        return {}
    from quire.llm.requests.adapter_references import LoRARequest

    return {"lora_request": LoRARequest(folder.name, 1, str(folder))}
