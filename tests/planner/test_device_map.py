"""Which device gets which layers, by what they need."""

from __future__ import annotations

import pytest

from quire.core.errors import ConfigError
from quire.planner.device_map import Room, place_layers
from quire.settings.config import EngineConfig
from quire.settings.parallel_options import read_max_memory


def need(layers: list[int], embedding: int = 0, head: int = 0, *, tied: bool = False):
    """Return what a model of such layers needs; a process that is not alone has a buffer of 1."""

    def of(device: str, part: range) -> int:
        whole = len(part) == len(layers)
        tables = (part[0] == 0) * embedding + (part[-1] == len(layers) - 1) * head
        if tied and whole:
            tables = embedding
        return sum(layers[layer] for layer in part) + tables + (not whole)

    return of


def place(of, num_layers: int, *sizes: int) -> list[tuple[str, int]]:
    rooms = [Room(f"d{number}", size) for number, size in enumerate(sizes)]
    placed = place_layers(num_layers, of, rooms)
    assert [layer for stage in placed for layer in stage.layers] == list(range(num_layers))
    for stage in placed:
        assert stage.needed_bytes == of(stage.device, stage.layers) <= stage.room_bytes
    return [(stage.device, len(stage.layers)) for stage in placed]


@pytest.mark.parametrize(
    ("of", "num_layers", "sizes", "expected"),
    [
        # The first device holds all: further ones are left alone.
        (need([10] * 6), 6, [60, 100], [("d0", 6)]),
        (need([10] * 6), 6, [59, 100], [("d0", 5), ("d1", 1)]),
        # Uneven devices, in the order that was given.
        (need([10] * 6), 6, [21, 100], [("d0", 2), ("d1", 4)]),
        (need([10] * 6), 6, [41, 21], [("d0", 4), ("d1", 2)]),
        (need([10] * 6), 6, [21, 21, 21], [("d0", 2), ("d1", 2), ("d2", 2)]),
        # The embedding is on the first one, the head on the last one.
        (need([10] * 6, 15, 15), 6, [36, 60], [("d0", 2), ("d1", 4)]),
        (need([10] * 6, 15, 15), 6, [36, 31, 60], [("d0", 2), ("d1", 3), ("d2", 1)]),
        (need([10] * 6, 15, 15), 6, [66, 26], [("d0", 5), ("d1", 1)]),
        # A tied matrix counts once in one process, and twice in two.
        (need([10] * 6, 15, 15, tied=True), 6, [75, 1], [("d0", 6)]),
        (need([10] * 6, 15, 15, tied=True), 6, [74, 26], [("d0", 5), ("d1", 1)]),
        # Layers of experts are far larger than the dense ones before them.
        (need([2, 2, 50, 50, 50]), 5, [60, 200], [("d0", 3), ("d1", 2)]),
        # No layer fits the first one.
        (need([10] * 2, 50), 2, [40, 100], [("d1", 2)]),
        (need([10, 10, 90, 10]), 4, [21, 50, 110], [("d0", 2), ("d2", 2)]),
    ],
)
def test_choices(of, num_layers, sizes, expected):
    assert place(of, num_layers, *sizes) == expected


def test_what_fits_nowhere_is_said_with_the_numbers():
    with pytest.raises(ConfigError) as refused:
        place(need([1000] * 6, 500, 500), 6, 2600, 1500)
    text = str(refused.value)
    assert "must place 6 layers, which need 6.8 KiB on one device" in text
    assert "room of d0 2.5 KiB, d1 1.5 KiB" in text
    assert "d0 layers 0 to 1 (2.4 KiB of 2.5 KiB); d1 layers 2 to 2" in text
    assert "The other 3 need 3.4 KiB. Raise --max-memory" in text
    with pytest.raises(ConfigError, match="no layer fits"):
        place(need([10] * 6), 6, 5)


@pytest.mark.parametrize(
    "text",
    [
        "cpu=2GiB,reference=1GiB",
        " cpu = 2GiB , reference = 1024MiB",
        '{"cpu": "2GiB", "reference": 1073741824}',
    ],
)
def test_memory_of_devices(text):
    found = read_max_memory(text)
    assert list(found.items()) == [("cpu", 2**31), ("reference", 2**30)]


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu=", "cpu=x", "cpu=0", "cpu=1,cpu=2", "=1", "[1]", "7", '{"cpu": null}']
)
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError, match="--max-memory must be devices, each once, with bytes"):
        read_max_memory(text)


def test_python_gives_a_mapping():
    config = EngineConfig.from_keywords(device_map="auto", max_memory={"cpu": "2GiB"})
    assert read_max_memory(config.parallel.max_memory) == {"cpu": 2**31}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_memory": "cpu=1GiB"}, "--max-memory needs --device-map auto"),
        ({"device_map": "balanced"}, "--device-map must be"),
        ({"device_map": "auto", "pipeline_parallel_size": 2}, "--pipeline-parallel-size 2 as well"),
        ({"device_map": "auto", "tensor_parallel_size": 2}, "--tensor-parallel-size 2 as well"),
        ({"device_map": "auto", "data_parallel_size": 2}, "--data-parallel-size 2 as well"),
        ({"device_map": "auto", "distributed_executor_backend": "ray"}, "ray as well"),
        ({"device_map": "auto", "max_memory": "cuda=1GiB"}, "of cpu and reference; got cuda"),
        ({"device_map": "auto", "max_memory": "cpu=1", "device": "cpu"}, "--device cpu as well"),
        ({"pipeline_parallel_size": 2, "stage_memory": "1GiB"}, "--stage-memory must be bytes"),
        ({"pipeline_parallel_size": 2, "stage_memory": "1GiB,0"}, "--stage-memory must be bytes"),
    ],
)
def test_what_contradicts_it_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        EngineConfig.from_keywords(**settings)


def test_a_rank_has_the_memory_of_its_stage():
    config = EngineConfig.from_keywords(
        tensor_parallel_size=2, pipeline_parallel_size=2, stage_memory="2GiB,1GiB", memory="8GiB"
    )
    assert [config.of_rank(rank).cache.memory for rank in range(4)] == [2**30] * 2 + [2**29] * 2
