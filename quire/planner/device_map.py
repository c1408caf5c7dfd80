"""Division of layers between devices by memory: arithmetic on what ranges of layers need.

It starts nothing and measures nothing. Its result is what ``--stage-layers``,
``--stage-devices`` and ``--stage-memory`` say by hand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quire.core.counts import format_bytes
from quire.core.errors import ConfigError

#: Bytes that a range of layers needs on a device: weights, KV of the context, activations. Layer 0
#: brings the embedding, the last one the head; all layers are the model in one process.
Need: TypeAlias = Callable[[str, range], int]


@dataclass(frozen=True, slots=True)
class Room:
    """A device and the bytes that may be used of it."""

    device: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """Layers on a device, the bytes they need, and those that may be used."""

    device: str
    layers: range
    needed_bytes: int
    room_bytes: int

    def __str__(self) -> str:
        needed, room = format_bytes(self.needed_bytes), format_bytes(self.room_bytes)
        return f"{self.device} layers {self.layers[0]} to {self.layers[-1]} ({needed} of {room})"


def place_layers(num_layers: int, need: Need, rooms: Sequence[Room]) -> list[PlacedStage]:
    """Give each device, in order, as many layers as it has room for.

    The first device has all of them if it can. One without room for a single layer has none. As a
    range needs more the longer it is, no other division places more layers.

    Raises:
        ConfigError: Layers are left over; the message has the bytes of each device.
    """
    whole, first = range(num_layers), rooms[0]
    needed = need(first.device, whole)
    if needed <= first.num_bytes:
        return [PlacedStage(first.device, whole, needed, first.num_bytes)]
    placed: list[PlacedStage] = []
    start = 0
    for room in rooms:
        count = _most_layers(num_layers, start, need, room)
        if count:
            layers = range(start, start + count)
            size = need(room.device, layers)
            placed.append(PlacedStage(room.device, layers, size, room.num_bytes))
            start += count
        if start == num_layers:
            return placed
    have = ", ".join(f"{room.device} {format_bytes(room.num_bytes)}" for room in rooms)
    holds = "; ".join(map(str, placed)) or "no layer fits"
    rest = need(rooms[-1].device, range(start, num_layers))
    layer = "1 layer, which needs" if num_layers == 1 else f"{num_layers} layers, which need"
    left = num_layers - start
    others = "The last one needs" if left == 1 else f"The other {left} need"
    raise ConfigError(
        f"[config] --device-map auto must place {layer} "
        f"{format_bytes(needed)} on one device; got room of {have}: {holds}. "
        f"{others} {format_bytes(rest)}. Raise --max-memory or name more devices "
        "in it, lower --max-model-len or --max-num-batched-tokens, or give --quantization."
    )


def map_line(placed: Sequence[PlacedStage]) -> str:
    """Say which device has which layers."""
    count = "one stage" if len(placed) == 1 else f"{len(placed)} stages"
    return f"device_map = {count}: {', '.join(map(str, placed))}"


def _most_layers(num_layers: int, start: int, need: Need, room: Room) -> int:
    """Return how many layers from ``start`` on fit in a room."""
    stops = range(start + 1, num_layers + 1)
    return bisect_right(
        stops, room.num_bytes, key=lambda stop: need(room.device, range(start, stop))
    )
