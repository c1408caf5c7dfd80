"""Reads adapters and lays them out for a decoder; which are kept in memory is decided elsewhere."""

from __future__ import annotations

from pathlib import Path

from quire.core.adapter_options import AdapterOptions
from quire.core.adapters import AdapterReference
from quire.core.errors import ModelLoadError
from quire.kernels.backend import Backend
from quire.models.adapters.base_weights import BaseWeights
from quire.models.adapters.matching import check_adapter
from quire.models.adapters.peft_folder import hash_adapter, read_adapter
from quire.models.adapters.placement import PlacedAdapter, largest_adapter_bytes, place_adapter
from quire.models.adapters.places import read_places
from quire.models.decoder import Decoder


class AdapterReader:
    """Reads adapters and lays them out for a decoder, all of it or one rank's part.

    Args:
        decoder: Takes adapters.
        backend: Holds them.
        max_rank: Largest rank.
        path: The decoder's checkpoint.
    """

    def __init__(self, decoder: Decoder, backend: Backend, max_rank: int, path: Path) -> None:
        self._adapted, self._backend, self._base = decoder.adapted, backend, BaseWeights(path)
        self._places = [slots.place for slots in decoder.adapted]
        here = {place.modules for place in self._places}
        every = [] if decoder.stage.is_whole else read_places(path)
        self._elsewhere = [place for place in every if place.modules not in here]
        self._max_rank = max_rank
        self.largest_bytes = largest_adapter_bytes(self._places, max_rank)

    def read(self, adapter: AdapterReference) -> PlacedAdapter:
        """Read an adapter; any thread may.

        Raises:
            ModelLoadError: It cannot be read, or is not what it was.
        """
        if hash_adapter(adapter.path) != adapter.content_hash:
            raise ModelLoadError(
                f"[adapter] {adapter.path} must be as it was when {adapter.name} was registered; "
                "its files have changed. Load the adapter again."
            )
        read = read_adapter(adapter.path)
        check_adapter(read, [*self._places, *self._elsewhere], self._max_rank)
        return place_adapter(read, self._adapted, self._backend, self._base, self._elsewhere)


def expected_budget(path: Path, options: AdapterOptions, layers: range | None) -> int:
    """Return the memory that is set aside for adapters, before their decoder is loaded.

    Args:
        path: The decoder's checkpoint.
        options: How many adapters, and how large.
        layers: Layers of the decoder; None for all.
    """
    if not options.enable_lora:
        return 0
    places = read_places(path, layers)
    return options.num_held * largest_adapter_bytes(places, options.max_lora_rank)


def create_reader(
    decoder: Decoder, backend: Backend, options: AdapterOptions, path: Path
) -> AdapterReader | None:
    """Return what reads a decoder's adapters; None where it takes none.

    Args:
        decoder: Takes them.
        backend: Holds them.
        options: How large.
        path: The decoder's checkpoint.
    """
    if not options.enable_lora:
        return None
    return AdapterReader(decoder, backend, options.max_lora_rank, path)
