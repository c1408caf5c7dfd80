"""A model as stages of a pipeline, as threads of one process: the bits of one stage alone."""

import numpy as np
import pytest

from quire.checkpoints.embedded import ASSETS
from quire.core.errors import ConfigError
from quire.kernels.registry import create_backend
from quire.layers.residual_capture import ResidualCapture
from quire.models.config.config_reader import read_model_config
from quire.models.shards.rank_model import Shard
from quire.models.stage import GroupLink, SentCapture, Stage, receive
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.quantization_plan import create_plan
from quire.settings.config import EngineConfig
from quire.settings.parallel_layout import ParallelLayout
from tests.distributed.thread_group import thread_groups
from tests.distributed.thread_ranks import on_ranks
from tests.models.test_decoder import MODELS

TINY = ASSETS / "quire-tiny"


@pytest.fixture(scope="module")
def cpu():
    return create_backend("cpu", threads=1)


def stage_of(group, backend, num_layers):
    """Return the stage of a rank, each rank a stage."""
    layers = ParallelLayout(pipeline=group.size).stage_layers(num_layers)[group.rank]
    before = GroupLink(backend, group, group.rank - 1) if group.rank else None
    after = GroupLink(backend, group, group.rank + 1) if group.rank + 1 < group.size else None
    return Stage(layers, before, after)


def run(driver, prompts):
    """Return logits of a step of all rows, of one with few and of one that wants none."""
    first, second = (np.array(prompt) for prompt in prompts)
    driver.start(2)
    return [
        driver.step([first[:7], second]),
        driver.step([first[7:], second[:1]], wanted="last"),
        driver.step([first[:3], second[:2]], wanted="none"),
    ]


def on_stages(size, folder, backends, create_driver, body, **options):
    """Return what ``body`` makes of each stage's driver."""

    def rank(group):
        backend = backends[group.rank % len(backends)]
        stage = stage_of(group, backend, read_model_config(folder).num_layers)
        return body(create_driver(folder, backend, stage=stage, **options), group)

    return on_ranks(size, rank)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_bits_of_one_stage(name, size, oracle, cpu, create_driver, random_prompts):
    _, folder = oracle(name)
    prompts = random_prompts([20, 9])
    want = run(create_driver(folder, cpu), prompts)
    got = on_stages(size, folder, [cpu], create_driver, lambda driver, _: run(driver, prompts))[-1]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_checkpoint_of_quire_tiny(size, cpu, create_driver, random_prompts):
    prompts = random_prompts([40, 9])
    want = run(create_driver(TINY, cpu), prompts)
    got = on_stages(size, TINY, [cpu], create_driver, lambda driver, _: run(driver, prompts))[-1]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_shards_of_stages(oracle, cpu, create_driver, random_prompts):
    """Rank 2 s + t is shard t of stage s."""
    _, folder = oracle("llama-biased-tied")
    prompts = random_prompts([20, 9])
    want = run(create_driver(folder, cpu), prompts)
    shards = [thread_groups(2) for _ in range(2)]

    def rank(group):
        stage, shard = ParallelLayout(2, 2).place(group.rank)
        layers = ParallelLayout(2, 2).stage_layers(3)[stage]
        link = GroupLink(cpu, group, group.rank + (-2 if stage else 2))
        made = Stage(layers, link, None) if stage else Stage(layers, None, link)
        own = Shard(shards[stage][shard])
        return run(create_driver(folder, cpu, stage=made, shard=own), prompts)

    for a, b in zip(on_ranks(4, rank)[2], want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2", "deepseek-v3"])
def test_stages_of_different_backends(name, oracle, cpu, create_driver, random_prompts):
    """As close to one backend alone as the other backend is."""
    _, folder = oracle(name)
    backends = [cpu, create_backend("reference", threads=1)]
    prompts = random_prompts([20, 9])
    first, last = (run(create_driver(folder, each), prompts)[:2] for each in backends)
    got = on_stages(3, folder, backends, create_driver, lambda driver, _: run(driver, prompts))[-1]
    for a, b, c in zip(got[:2], first, last, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max())
        np.testing.assert_allclose(a, c, atol=1e-4 * np.abs(c).max())


@pytest.mark.parametrize("form", [None, "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_a_stage_takes_the_bytes_that_are_expected(name, form, oracle, cpu, create_driver):
    _, folder = oracle(name)
    config = read_model_config(folder)
    plan = create_plan(EngineConfig.from_keywords(model=str(folder), quantization=form).model)

    def body(driver, group):
        layers = driver.decoder.stage.layers
        expected = expected_weight_bytes(folder, config, "float32", plan, 100, layers=layers)
        assert driver.decoder.weight_bytes == expected
        return list(layers)

    options = {"plan": plan, "dtype": "float32", "max_model_len": 100}
    found = on_stages(2, folder, [cpu], create_driver, body, **options)
    assert [layer for layers in found for layer in layers] == list(range(config.num_layers))


def test_what_enters_layers_of_other_stages_comes_back(oracle, cpu, create_driver, random_prompts):
    _, folder = oracle("llama")
    (prompt,) = random_prompts([19])

    def states(capture, driver):
        driver.decoder.forward = keeping(driver.decoder.forward, capture)
        driver.step([np.array(prompt)], wanted="last")
        return capture

    def keeping(forward, capture):
        return lambda batch, kv_cache: forward(batch, kv_cache, capture=capture)

    layers, width = [0, 1, 2], read_model_config(folder).hidden_size
    want = states(ResidualCapture(cpu, layers, width, 3), create_driver(folder, cpu)).states

    def body(driver, group):
        capture = ResidualCapture(cpu, layers, width, 3)
        if group.rank:
            states(SentCapture(cpu, group, frozenset(layers), 0), driver)
            return None
        states(capture, driver)
        residual = cpu.empty((len(prompt), width))
        for rank, layer in ((1, 1), (2, 2)):
            capture.keep(layer, receive(cpu, group, rank, residual))
        return np.array(capture.states)

    got = on_stages(3, folder, [cpu], create_driver, body)[0]
    np.testing.assert_array_equal(got, want)


def test_what_another_stage_has_is_refused_by_name(oracle, cpu, create_driver):
    _, folder = oracle("llama")

    def body(driver, group):
        return driver.decoder.embedding if group.rank else driver.decoder.head

    with pytest.raises(ConfigError, match=r"\[pipeline\] the (output head|embedding) is another"):
        on_stages(2, folder, [cpu], create_driver, body)
