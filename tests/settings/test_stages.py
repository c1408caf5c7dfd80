"""Which layers and which device each stage has."""

import pytest

from quire.core.errors import ConfigError
from quire.settings.parallel_layout import ParallelLayout
from quire.settings.parallel_options import ParallelOptions


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_layers", [7, 8, 30, 80])
def test_every_layer_is_in_one_stage(num_layers, num_stages):
    stages = ParallelLayout(pipeline=num_stages).stage_layers(num_layers)
    assert [layer for layers in stages for layer in layers] == list(range(num_layers))
    sizes = [len(layers) for layers in stages]
    assert max(sizes) - min(sizes) <= 1


def test_eighty_layers_in_four_stages():
    stages = ParallelLayout(pipeline=4).stage_layers(80)
    assert [(layers[0], layers[-1]) for layers in stages] == [(0, 19), (20, 39), (40, 59), (60, 79)]


def test_given_numbers_of_layers():
    layout = ParallelOptions(pipeline_parallel_size=3, stage_layers="1, 4,2").layout
    assert layout.stage_layers(7) == [range(1), range(1, 5), range(5, 7)]
    with pytest.raises(ConfigError, match="must be the 8 layers of the model in all; got 1,4,2"):
        layout.stage_layers(8)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ConfigError, match="--pipeline-parallel-size must be at most 3, the layers"):
        ParallelLayout(pipeline=4).stage_layers(3)


def test_a_rank_has_the_device_of_its_stage():
    options = ParallelOptions(
        tensor_parallel_size=2, pipeline_parallel_size=2, stage_devices="cpu,reference"
    )
    options.check()
    assert [options.of_rank(rank).device for rank in range(4)] == ["cpu"] * 2 + ["reference"] * 2
    assert ParallelOptions().of_rank(0) == ParallelOptions()


@pytest.mark.parametrize(
    "settings",
    [
        {"stage_layers": "3"},
        {"stage_layers": "3,0"},
        {"stage_layers": "3,x"},
        {"stage_layers": ""},
        {"stage_devices": "cpu"},
        {"stage_devices": "cpu,gpu"},
    ],
)
def test_what_does_not_fit_the_stages_is_refused(settings):
    (flag,) = settings
    with pytest.raises(ConfigError, match=rf"--{flag.replace('_', '-')} must be"):
        ParallelOptions(pipeline_parallel_size=2, **settings).check()
