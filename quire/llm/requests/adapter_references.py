"""Adapters by their folders, as callers name them, checked against a model; nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from quire.checkpoints.file_state import FileState, file_states
from quire.core.adapter_reference import AdapterReference
from quire.core.errors import RequestError
from quire.settings.adapter_options import AdapterOptions

if TYPE_CHECKING:
    from quire.layers.adapters.adapter_slots import AdapterPlace

#: References that are kept: an adapter is read whole for its hash.
MOST_KEPT = 1024


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter for a call of ``LLM``, as in vLLM.

    Attributes:
        lora_name: A name for people.
        lora_int_id: Any number; it is not used, as adapters are told apart by their content.
        lora_path: A folder that PEFT wrote.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str


class AdapterReferences:
    """Makes references to adapters from their folders; any thread may use it.

    Args:
        checkpoint: Folder of the model.
        options: The engine's settings of adapters.
    """

    def __init__(self, checkpoint: Path, options: AdapterOptions) -> None:
        self._checkpoint, self._options = checkpoint, options
        self._known: dict[tuple[str, tuple[FileState, ...]], AdapterReference] = {}

    @cached_property
    def _places(self) -> list[AdapterPlace]:
        from quire.models.adapters.places import read_places

        return read_places(self._checkpoint)

    def read(self, name: str, folder: str | Path) -> AdapterReference:
        """Return a reference to an adapter for requests; all of its files are read, once.

        Raises:
            RequestError: The engine takes no adapters.
            ModelLoadError: The adapter is damaged, has too large a rank, or is for another model.
        """
        if not self._options.enable_lora:
            raise RequestError(
                f"[adapter] needs an engine with --enable-lora (enable_lora=True); got {name!r} "
                "without.",
                "model",
            )
        # Imported where it is needed: a server without adapters loads nothing of it.
        from quire.models.adapters.matching import check_adapter
        from quire.models.adapters.peft_folder import (
            WEIGHTS,
            adapter_folder,
            describe_adapter,
            read_adapter,
        )
        from quire.models.adapters.peft_settings import CONFIG

        path = adapter_folder(folder)
        key = str(path), file_states((path / CONFIG, path / WEIGHTS))
        found = self._known.get(key)
        if found is None:
            adapter = read_adapter(path)
            extra = check_adapter(adapter, self._places, self._options.max_lora_rank)
            found = describe_adapter(name, adapter, extra)
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            self._known[key] = found
        return replace(found, name=name)
