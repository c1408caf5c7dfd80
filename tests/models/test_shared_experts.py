"""A model over several engines that have some experts each: the bits of one process."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from quire.core.errors import ConfigError, ModelLoadError
from quire.kernels.registry import create_backend
from quire.models.config_reader import read_model_config
from quire.models.shards.engine_model import EngineShard, ExpertPart
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.plan import QuantizationPlan
from quire.quantization.round_to_nearest import create_scheme
from tests.models.conftest import MODELS
from tests.models.peft_adapters import add
from tests.models.test_decoder import MODELS as NAMES

#: Fields of models that have them.
EXPERTS = {"num_local_experts", "num_experts", "n_routed_experts"}
MIXTURES = [name for name in NAMES if EXPERTS & set(MODELS[name][1])]


@pytest.fixture(scope="module")
def cpu():
    return create_backend("cpu", threads=1)


@dataclasses.dataclass
class DirectSiblings:
    """Engines in one process, each asked by a call: the definition of what others do faster."""

    number: int
    all: list[DirectSiblings]
    layers: list = dataclasses.field(default_factory=list)
    asked: dict = dataclasses.field(default_factory=dict)

    @property
    def size(self):
        return len(self.all)

    def serve(self, multiply):
        self.layers.append(multiply)
        return len(self.layers) - 1

    def ask(self, engine, layer, experts, x):
        assert engine != self.number and len(x)
        self.asked[engine] = layer, experts, x

    def answer(self, engine, out):
        layer, experts, x = self.asked.pop(engine)
        out[:] = self.all[engine].layers[layer](x, experts)


def create_siblings(size):
    made: list[DirectSiblings] = []
    made += (DirectSiblings(number, made) for number in range(size))
    return made


def run(driver, random_prompts):
    first, second = map(np.array, random_prompts([20, 9], 211))
    driver.start(2)
    found = driver.step([first[:7], second]).copy()
    return found, driver.step([first[7:], second[:1]], wanted="last").copy()


@pytest.mark.parametrize("size", [2, 3, 9])
@pytest.mark.parametrize("name", MIXTURES)
def test_a_family_has_the_bits_of_one_process(
    name, size, oracle, cpu, create_driver, random_prompts
):
    """More engines than experts, too: these are in several of them then."""
    folder = oracle(name)[1]
    want = run(create_driver(folder, cpu), random_prompts)
    drivers = [create_driver(folder, cpu, shard=EngineShard(own)) for own in create_siblings(size)]
    for number, driver in enumerate(drivers):
        for ours, theirs in zip(run(driver, random_prompts), want, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        check_bytes(driver, ExpertPart(number, size), QuantizationPlan())


def check_bytes(driver, part, plan):
    """The memory of an engine is what is said beforehand."""
    decoder, folder = driver.decoder, driver.folder
    config = read_model_config(folder)
    given = folder, config, decoder.config.dtype, plan, decoder.max_model_len
    assert expected_weight_bytes(*given, part=part) == decoder.weight_bytes


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_rounded_experts(scheme, oracle, cpu, create_driver, random_prompts):
    folder, plan = oracle("qwen3-moe")[1], QuantizationPlan(create_scheme(scheme, 32), None, False)
    want = run(create_driver(folder, cpu, plan=plan), random_prompts)
    drivers = [
        create_driver(folder, cpu, plan=plan, shard=EngineShard(own)) for own in create_siblings(2)
    ]
    for number, driver in enumerate(drivers):
        for ours, theirs in zip(run(driver, random_prompts), want, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        check_bytes(driver, ExpertPart(number, 2), plan)


def test_adapters_of_all_but_experts(oracle, adapted, cpu, create_driver, random_prompts):
    folder = oracle("qwen3-moe")[1]
    _, adapter = adapted("qwen3-moe", ["q_proj"])
    want = run(add(create_driver(folder, cpu, takes_adapters=True), adapter), random_prompts)
    drivers = [
        create_driver(folder, cpu, takes_adapters=True, shard=EngineShard(own))
        for own in create_siblings(2)
    ]
    for driver in drivers:
        for ours, theirs in zip(run(add(driver, adapter), random_prompts), want, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_adapters_of_experts_are_refused(oracle, adapted, cpu, create_driver):
    experts = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
    _, adapter = adapted("qwen3-moe", ["q_proj"], **experts)
    shard = EngineShard(create_siblings(2)[0])
    driver = create_driver(oracle("qwen3-moe")[1], cpu, takes_adapters=True, shard=shard)
    with pytest.raises(ModelLoadError, match="expert"):
        add(driver, adapter)


def test_a_model_without_experts_is_refused(oracle, cpu, create_driver):
    with pytest.raises(ConfigError, match="must have a mixture of experts"):
        create_driver(oracle("gpt2")[1], cpu, shard=EngineShard(create_siblings(2)[0]))
