"""Adapters of experts, routers and experts that are always on, against peft."""

import copy
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.lazy_packages import lazy_package

torch = pytest.importorskip("torch")
peft = lazy_package("peft")

from safetensors.numpy import load_file, save_file  # noqa: E402

from quire.cli.main import run  # noqa: E402
from quire.core.errors import ModelLoadError  # noqa: E402
from quire.kernels.matrices.host_tensor import HostTensor  # noqa: E402
from quire.layers.adapters.adapter_slots import AdapterPlace, StackedExperts  # noqa: E402
from quire.models.adapters.adapter_placement import place_adapter  # noqa: E402
from quire.models.adapters.base_weights import BaseWeights  # noqa: E402
from quire.models.adapters.matching import check_adapter, find_parts  # noqa: E402
from quire.models.adapters.peft_folder import (  # noqa: E402
    WEIGHTS,
    PeftAdapter,
    StackedMatrices,
    read_adapter,
)
from quire.models.adapters.peft_settings import CONFIG, PeftSettings  # noqa: E402
from quire.models.adapters.places import read_places  # noqa: E402
from quire.models.loader import open_checkpoint  # noqa: E402
from tests.models.peft_adapters import add, check_rows  # noqa: E402
from tools.random_adapter import random_adapter  # noqa: E402

BOTH = ["experts.gate_up_proj", "experts.down_proj"]
#: What peft is asked to train of models that hold a layer's experts together.
KINDS = {
    "all experts": ("qwen3-moe", ["q_proj"], {"target_parameters": BOTH}),
    "one side, scaled otherwise": (
        "olmoe", ["v_proj"], {"target_parameters": BOTH[1:], "use_rslora": True},
    ),
    "other side": ("glm4-moe", ["o_proj"], {"target_parameters": BOTH[:1]}),
    "router": ("qwen3-moe", ["v_proj"], {"target_parameters": ["mlp.gate.weight"]}),
    "names of older checkpoints": ("mixtral", ["w1", "w2", "w3", "gate", "q_proj"], {}),
    "rows in turns, router's bias": (
        "gpt-oss", ["q_proj"], {"target_parameters": [*BOTH, "router.weight"], "bias": "all"},
    ),
    "router of another name": (
        "granite-moe", ["q_proj"], {"target_parameters": [*BOTH, "router.weight"]},
    ),
    "experts always on": (
        "granite-moe-shared", ["shared_mlp.input_linear", "shared_mlp.output_linear"],
        {"target_parameters": BOTH, "rank_pattern": {"experts.down_proj": 3}},
    ),
    "experts always on, gated": ("qwen2-moe", "all-linear", {"use_dora": True}),
    "weighed inputs": ("llama4", ["shared_expert.up_proj"], {"target_parameters": BOTH}),
    "latents": ("deepseek-v3", ["kv_a_proj_with_mqa"], {"target_parameters": BOTH}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_experts_have_the_adapters_of_peft(
    kind, oracle, adapted, backend, create_driver, oracle_logits, random_prompts
):
    """Each row of a mixed batch has the bits it has alone."""
    name, targets, settings = KINDS[kind]
    models, prompts = (oracle, adapted), random_prompts([14, 9])
    check_rows(models, name, (targets, settings), backend, create_driver, oracle_logits, prompts)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_experts_are_those_of_peft(kind, oracle, adapted, tmp_path):
    name, targets, settings = KINDS[kind]
    model, folder = adapted(name, targets, **settings)
    assert run(["merge", str(oracle(name)[1]), str(folder), str(tmp_path / "ours")]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy.deepcopy(model).merge_and_unload().save_pretrained(tmp_path / "theirs")
    compare(tmp_path / "ours", tmp_path / "theirs")


def compare(ours, theirs):
    """Compare all tensors of two checkpoints, however experts are stored."""
    first, second = (open_checkpoint(path, "auto", None) for path in (ours, theirs))
    for tensor in first.weights.shapes():
        got, want = (opened.tensors.tensor(tensor).float32() for opened in (first, second))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mixtral", "olmoe"])
def test_an_adapter_of_each_expert_is_read_as_peft_reads_it(
    name, oracle, backend, create_driver, oracle_logits, random_prompts, tmp_path
):
    """As peft wrote them of models whose experts were linears."""
    model, folder = oracle(name)
    random_adapter(folder, tmp_path, rank=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).eval()
    driver = add(create_driver(folder, backend, takes_adapters=True), tmp_path)
    (prompt,) = random_prompts([14])
    driver.adapters = [1]
    got, want = driver.step([np.array(prompt)]), oracle_logits(model, prompt)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_magnitudes_of_an_expert_are_those_of_its_merged_matrix(
    oracle, backend, create_driver, random_prompts, tmp_path
):
    folder, adapter = oracle("mixtral")[1], tmp_path / "adapter"
    random_adapter(folder, adapter, rank=3, use_dora=True)
    tensors, base = load_file(adapter / WEIGHTS), open_checkpoint(folder, "auto", None).tensors
    for name in list(tensors):
        if name.endswith("lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            norms = np.linalg.norm(base.tensor(f"{module}.weight").float32(), axis=1)
            tensors[name.replace("lora_A.weight", "lora_magnitude_vector")] = 1.3 * norms
    save_file(tensors, adapter / WEIGHTS)
    assert run(["merge", str(folder), str(adapter), str(tmp_path / "merged")]) == 0
    (prompt,) = random_prompts([14])
    driver = add(create_driver(folder, backend, takes_adapters=True), adapter)
    driver.adapters = [1]
    got = driver.step([np.array(prompt)])
    want = create_driver(tmp_path / "merged", backend).step([np.array(prompt)])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_matrices_the_other_way_round_are_those_of_older_peft(oracle, adapted, tmp_path):
    """Up to 0.19.0 it took (E, out, in) for (E, in, out)."""
    folder, places = adapted("qwen3-moe", ["q_proj"], target_parameters=BOTH)[1], None
    tensors = load_file(folder / WEIGHTS)
    count, rank = 6, 5
    for name in [n for n in tensors if "experts" in n and n.endswith("lora_A.weight")]:
        other = name.replace("lora_A", "lora_B")
        down = tensors[name].reshape(count, rank, -1)
        up = tensors[other].reshape(-1, rank, count)
        tensors[name] = np.ascontiguousarray(up.transpose(2, 1, 0).reshape(count * rank, -1))
        turned = np.ascontiguousarray(down.transpose(2, 1, 0).reshape(-1, rank * count))
        tensors[other] = turned
    save_file(tensors, tmp_path / WEIGHTS)
    config = json.loads((folder / CONFIG).read_text()) | {"peft_version": "0.18.1"}
    (tmp_path / CONFIG).write_text(json.dumps(config))
    places = read_places(oracle("qwen3-moe")[1])
    ours, theirs = (find_parts(read_adapter(f), places).matrices for f in (folder, tmp_path))
    assert ours.keys() == theirs.keys()
    for module, own in ours.items():
        np.testing.assert_array_equal(own.up.array, theirs[module].up.array)
        np.testing.assert_array_equal(own.down.array, theirs[module].down.array)


@pytest.mark.parametrize(("version", "is_turned"), [("0.19.0", True), ("0.19.1", False)])
def test_the_version_tells_what_square_matrices_are(version, is_turned):
    values = {"r": 1, "lora_alpha": 1, "target_parameters": ["w"], "peft_version": version}
    down, up = (np.arange(8, dtype=np.float32).reshape(shape) for shape in ((2, 4), (4, 2)))
    own = StackedMatrices(HostTensor("A", "float32", down), HostTensor("B", "float32", up))
    adapter = PeftAdapter(PeftSettings(Path("a"), values), {}, {"0.experts": [own]})
    stack = StackedExperts("0.experts.w", expert=1, count=2)
    place = AdapterPlace(("0.experts.1.w",), (4,), 4, (None,), stacks=(stack,))
    found = find_parts(adapter, [place]).matrices["0.experts.1.w"]
    want = (up[:, 1:2].T, down[1:2].T) if is_turned else (down[1:2], up[:, 1:2])
    np.testing.assert_array_equal(found.down.array, want[0])
    np.testing.assert_array_equal(found.up.array, want[1])


def test_what_experts_need_besides_is_told(oracle, adapted, backend, create_driver):
    for name, settings in (("qwen3-moe", {"target_parameters": BOTH}), ("llama", {})):
        folder = oracle(name)[1]
        adapter = read_adapter(adapted(name, ["q_proj"], **settings)[1])
        extra = check_adapter(adapter, read_places(folder), 5)
        driver = create_driver(folder, backend, takes_adapters=True)
        placed = place_adapter(adapter, driver.decoder.adapted, backend, BaseWeights(folder))
        own = [change.nbytes for slots, change in placed.parts if slots.place.is_expert]
        assert sum(own) <= extra and bool(own) is bool(extra)


def test_an_adapter_of_other_experts_is_refused(oracle, adapted):
    adapter = read_adapter(adapted("qwen3-moe", ["q_proj"], target_parameters=BOTH)[1])
    with pytest.raises(ModelLoadError, match=r"must be for a matrix of \(64, 64\)"):
        check_adapter(adapter, read_places(oracle("olmoe")[1]), 8)
    adapter.matrices.clear()
    with pytest.raises(ModelLoadError, match=r"mlp.experts must be of the rank .* got \(30, 64\)"):
        check_adapter(adapter, read_places(oracle("olmoe")[1]), 8)
    latents = read_adapter(adapted("deepseek-v3", ["kv_b_proj"])[1])
    with pytest.raises(ModelLoadError, match=r"must be for linears of the model, .*kv_b_proj"):
        check_adapter(latents, read_places(oracle("deepseek-v3")[1]), 8)
