"""Reader of adapters, which lays them out for a decoder; the store decides which stay in memory."""

from __future__ import annotations

from pathlib import Path

from quire.core.adapter_reference import AdapterReference
from quire.core.errors import ModelLoadError
from quire.kernels.backend import Backend
from quire.models.adapters.adapter_placement import (
    PlacedAdapter,
    largest_adapter_bytes,
    place_adapter,
)
from quire.models.adapters.base_weights import BaseWeights
from quire.models.adapters.matching import check_adapter
from quire.models.adapters.peft_folder import hash_adapter, read_adapter
from quire.models.adapters.places import read_places
from quire.models.decoder import Decoder
from quire.settings.adapter_options import AdapterOptions


class AdapterReader:
    """Reader of adapters for a decoder, all of it or one rank's part.

    Args:
        decoder: The decoder that takes adapters.
        backend: The backend that holds them.
        max_rank: Largest rank of an adapter.
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
        """Read an adapter and lay it out; from any thread.

        Raises:
            ModelLoadError: The adapter cannot be read, or its files have changed.
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
        options: Settings of adapters: how many are held, and of which rank.
        layers: Layers of the decoder; None for all.
    """
    if not options.enable_lora:
        return 0
    places = read_places(path, layers)
    return options.num_held * largest_adapter_bytes(places, options.max_lora_rank)


def create_reader(
    decoder: Decoder, backend: Backend, options: AdapterOptions, path: Path
) -> AdapterReader | None:
    """Return a reader of a decoder's adapters; None where it takes none.

    Args:
        decoder: The decoder that takes adapters.
        backend: The backend that holds them.
        options: Settings of adapters, with their largest rank.
        path: The decoder's checkpoint.
    """
    if not options.enable_lora:
        return None
    return AdapterReader(decoder, backend, options.max_lora_rank, path)
