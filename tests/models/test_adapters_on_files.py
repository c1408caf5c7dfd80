"""Adapters on GGUF files and on checkpoints that other programs rounded, against peft."""

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.lazy_packages import lazy_package

torch = pytest.importorskip("torch")
peft = lazy_package("peft")
transformers = lazy_package("transformers")

from quire.checkpoints.gguf.gguf_writer import write_gguf  # noqa: E402
from quire.models.adapters.adapter_placement import place_adapter  # noqa: E402
from quire.models.adapters.base_weights import BaseWeights  # noqa: E402
from quire.models.adapters.matching import check_adapter  # noqa: E402
from quire.models.adapters.peft_folder import read_adapter  # noqa: E402
from quire.models.adapters.places import read_places  # noqa: E402
from quire.models.arranged_tensors import arrange  # noqa: E402
from quire.models.config.config_reader import read_model_config  # noqa: E402
from quire.models.family_tensors import family_names, map_weights, open_tensors  # noqa: E402
from quire.models.gguf.gguf_export import GgufExport  # noqa: E402
from quire.models.weight_map import WeightMap  # noqa: E402
from quire.quantization.quantization_plan import QuantizationPlan  # noqa: E402
from tools.random_checkpoint import PRESETS  # noqa: E402
from tools.random_gguf import SIZES, random_gguf  # noqa: E402

FIXTURES = Path(__file__).parents[1] / "fixtures" / "quantized"
ROUNDED = ["gptq-w4-g32", "bnb-nf4"]
#: Families whose files have other names, fused matrices, or rows in another order.
FAMILIES = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "embed_tokens"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt-neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "falcon-40b": ["query_key_value", "dense"],
}


@pytest.fixture
def adapt(tmp_path):
    """Return a function that makes peft's model of a random adapter, and writes the adapter."""

    def make(model, targets, **settings):
        torch.manual_seed(3)
        config = peft.LoraConfig(
            r=4, lora_alpha=8, target_modules=targets, init_lora_weights=True, **settings
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = peft.get_peft_model(copy.deepcopy(model), config)
            with torch.no_grad():
                for name, parameter in adapted.named_parameters():
                    if "lora_" in name:
                        parameter.add_(0.15 * torch.randn_like(parameter))
            adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
        return adapted.eval(), tmp_path / "adapter"

    return make


def check(driver, path, folder, wanted, prompt):
    """Add the adapter to a decoder of ``path``, and compare its logits."""
    adapter = read_adapter(folder)
    check_adapter(adapter, read_places(path), 4)
    adapted = driver.decoder.adapted
    place_adapter(adapter, adapted, driver.backend, BaseWeights(path)).set(1)
    driver.adapters = [1]
    got = driver.step([np.array(prompt)])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("use_dora", [False, True])
def test_a_gguf_file_takes_the_adapters_of_its_checkpoint(
    name, use_dora, oracle, adapt, backend, create_driver, oracle_logits, random_prompts, tmp_path
):
    export = GgufExport(oracle(name)[1], "F32")
    write_gguf(tmp_path / "model.gguf", export.metadata, export.tensors)
    model, folder = adapt(oracle(name)[0], FAMILIES[name], use_dora=use_dora)
    (prompt,) = random_prompts([17])
    driver = create_driver(tmp_path / "model.gguf", backend, takes_adapters=True)
    check(driver, tmp_path / "model.gguf", folder, oracle_logits(model, prompt), prompt)


def test_experts_of_a_gguf_file_take_the_adapters_of_their_checkpoint(
    oracle, adapted, backend, create_driver, oracle_logits, random_prompts, tmp_path
):
    export = GgufExport(oracle("mixtral")[1], "F32")
    write_gguf(tmp_path / "model.gguf", export.metadata, export.tensors)
    parameters = ["experts.gate_up_proj", "experts.down_proj"]
    model, folder = adapted("mixtral", ["q_proj"], rank=4, target_parameters=parameters)
    (prompt,) = random_prompts([17])
    driver = create_driver(tmp_path / "model.gguf", backend, takes_adapters=True)
    check(driver, tmp_path / "model.gguf", folder, oracle_logits(model, prompt), prompt)


def dequantized(path, config):
    """Return transformers' Llama with the values that a file's matrices stand for."""
    model_config = read_model_config(path)
    tensors = open_tensors(path, model_config)
    weights = map_weights(tensors, model_config)
    arranged = arrange(tensors, weights)
    family = family_names(model_config)
    state = {}
    named = WeightMap(model_config, family)
    for stored, own in zip(weights.parts(), named.parts(), strict=True):
        for (name, _), (theirs, _) in zip(stored.shapes(), own.shapes(), strict=True):
            state[theirs] = torch.from_numpy(np.array(arranged.tensor(name).float32()))
    model = transformers.LlamaForCausalLM(config)
    missing, surplus = model.load_state_dict(state, strict=False)
    assert not surplus and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def check_rounded(path, config, adapt, backend, create_driver, oracle_logits, random_prompts):
    targets = ["q_proj", "v_proj", "gate_proj", "down_proj"]
    model, folder = adapt(dequantized(path, config), targets, use_dora=True)
    (prompt,) = random_prompts([17], config.vocab_size)
    plan = QuantizationPlan(exact_activations=True)
    driver = create_driver(path, backend, takes_adapters=True, plan=plan, dtype="float32")
    check(driver, path, folder, oracle_logits(model, prompt), prompt)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0", "Q4_K", "Q6_K"])
def test_matrices_in_blocks(
    type_name, adapt, backend, create_driver, oracle_logits, random_prompts, tmp_path
):
    random_gguf(tmp_path / "model.gguf", type_name)
    config = transformers.LlamaConfig(**(PRESETS["tiny-llama"] | SIZES))
    fixtures = adapt, backend, create_driver, oracle_logits, random_prompts
    check_rounded(tmp_path / "model.gguf", config, *fixtures)


@pytest.mark.parametrize("name", ROUNDED)
def test_matrices_that_others_rounded(
    name, adapt, backend, create_driver, oracle_logits, random_prompts
):
    config = transformers.LlamaConfig.from_pretrained(FIXTURES / name)
    config.quantization_config = None
    fixtures = adapt, backend, create_driver, oracle_logits, random_prompts
    check_rounded(FIXTURES / name, config, *fixtures)
