"""Training with rounded weights gives what is stored; adapters leave their base as it is."""

import json
import warnings

import numpy as np
import pytest

from tests.lazy_packages import lazy_package

torch = pytest.importorskip("torch")
lazy_package("transformers")
peft = lazy_package("peft")

from quire.checkpoints.checkpoint import Checkpoint  # noqa: E402
from quire.core.errors import ConfigError, UnsupportedArchitectureError  # noqa: E402
from quire.quantization.producers.integer_grid import IntegerGrid  # noqa: E402
from quire.quantization.producers.round_to_nearest import quantize_rtn  # noqa: E402
from quire.training.finetuning.causal_model import load_causal_model  # noqa: E402
from quire.training.finetuning.fake_quantize import FakeQuantize, round_weights  # noqa: E402
from quire.training.finetuning.finetuning_plan import FinetuningPlan  # noqa: E402
from quire.training.finetuning.frozen_linear import FrozenLinear, round_to_nf4  # noqa: E402
from quire.training.finetuning.loop import Loop, rate_share  # noqa: E402
from quire.training.finetuning.merge_trained import Adapter, merged_tensors  # noqa: E402
from quire.training.finetuning.quantization_aware import RoundedModel  # noqa: E402
from quire.training.finetuning.training_windows import Windows  # noqa: E402
from tools.random_checkpoint import PRESETS, random_checkpoint  # noqa: E402

PARTS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
#: Their module imports peft.
adapters = lazy_package("quire.training.finetuning.adapters")
MODULES = [f"model.layers.{layer}.{part}" for layer in range(3) for part in PARTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    random_checkpoint(folder, PRESETS["tiny-llama"], dtype="float32")
    return folder


def plan(method, steps=6, **fields):
    numbers = {"learning_rate": 1e-2, "batch_size": 2, "sequence_length": 16, "seed": 3}
    return FinetuningPlan(method=method, steps=steps, **(numbers | fields))


def text(count=1000):
    return [np.random.default_rng(1).integers(0, 20, count)]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "size"), [(2, 32), (3, 128), (4, 0), (8, 64)])
def test_rounded_values_are_those_of_plain_rounding(bits, size, symmetric):
    weight = np.random.default_rng(2).standard_normal((7, 160)).astype(np.float32)
    weight[0], weight[1], weight[2] = 0, np.abs(weight[1]), 1e-9 * weight[2]
    grid = IntegerGrid(bits, size, symmetric, search=False)
    want = quantize_rtn("w", weight, grid).float32()
    np.testing.assert_array_equal(round_weights(torch.from_numpy(weight), grid).numpy(), want)


def test_gradients_go_straight_through():
    weight = torch.randn(4, 32, requires_grad=True)
    factors = torch.randn(4, 32)
    rounded = FakeQuantize(IntegerGrid(2, 32, search=False))(weight)
    (rounded * factors).sum().backward()
    assert not torch.equal(rounded, weight)
    torch.testing.assert_close(weight.grad, factors, rtol=0, atol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_a_frozen_linear_computes_with_nf4(bias):
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 8, bias=bias)
    frozen = FrozenLinear("some", linear)
    want = round_to_nf4("some", linear.weight.detach().numpy()).float32()
    np.testing.assert_array_equal(frozen.weight.detach().numpy(), want)
    inputs = torch.randn(2, 3, 96, requires_grad=True)
    frozen(inputs).square().sum().backward()
    made, inputs.grad = inputs.grad, None
    plain = torch.nn.functional.linear(inputs, torch.from_numpy(want), linear.bias)
    plain.square().sum().backward()
    torch.testing.assert_close(made, inputs.grad)


def rounded_run(folder, checkpoint, steps, stop=None):
    grids = {module: IntegerGrid(3, 32, search=False) for module in MODULES}
    model = RoundedModel(load_causal_model(folder), grids)
    loop = Loop(model.model, Windows(text(), 16), plan("qat", steps), checkpoint)

    def on_step(progress):
        if progress.steps == stop:
            loop.save()
            raise KeyboardInterrupt

    try:
        loop.run(on_step)
    except KeyboardInterrupt:
        assert stop is not None
    return model, loop.progress


def test_rounded_weights_learn_and_nothing_else_changes(folder, tmp_path):
    model, progress = rounded_run(folder, tmp_path / "c.pt", 12)
    assert progress.loss_after < progress.loss_before
    whole, before = model.model.state_dict(), load_causal_model(folder).state_dict()
    changed = {n for n in before if n in whole and not torch.equal(whole[n], before[n])}
    assert not changed
    for module in MODULES:
        assert not np.array_equal(model.floats(module), before[f"{module}.weight"].numpy())
        stored = quantize_rtn(module, model.floats(module), IntegerGrid(3, 32, search=False))
        np.testing.assert_array_equal(model.rounded(module), stored.float32())


def test_a_stopped_run_ends_as_one_that_was_not(folder, tmp_path):
    want, _ = rounded_run(folder, tmp_path / "a.pt", 6)
    rounded_run(folder, tmp_path / "b.pt", 6, stop=3)
    made, progress = rounded_run(folder, tmp_path / "b.pt", 6)
    assert progress.steps == 6
    for module in MODULES:
        np.testing.assert_array_equal(made.floats(module), want.floats(module))


@pytest.fixture(scope="module")
def adapted(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("adapter")
    settings = plan("qlora", 12, rank=4, alpha=8)
    model = adapters.AdaptedModel(load_causal_model(folder), MODULES, settings)
    loop = Loop(model.model, Windows(text(), 16), settings, out / "c.pt")
    loop.run()
    model.save(out, "some/base")
    return model, loop.progress, out


def test_adapters_learn_and_the_base_stays(adapted):
    model, progress, out = adapted
    assert progress.loss_after < progress.loss_before
    assert model.hash_base() == model.base_hash
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    assert config["base_model_name_or_path"] == "some/base"


def test_a_changed_base_has_another_hash(folder):
    model = adapters.AdaptedModel(
        load_causal_model(folder), MODULES, plan("qlora", rank=2, alpha=4)
    )
    before = model.hash_base()
    next(m for m in model.model.modules() if isinstance(m, FrozenLinear)).codes[0, 0] ^= 1
    assert model.hash_base() != before


def merge(folder, out, base):
    """Return transformers' model with the merged matrices."""
    model = load_causal_model(folder)
    tensors = merged_tensors(Checkpoint(folder), MODULES, Adapter(out), base)
    with torch.no_grad():
        for name, tensor in tensors.items():
            model.get_parameter(name).copy_(torch.from_numpy(tensor.read()))
    return model


IDS = torch.arange(40).reshape(2, 20)


def test_merged_is_base_and_adapter(folder, adapted):
    _, _, out = adapted
    with torch.no_grad():
        base = load_causal_model(folder)
        alone = base(input_ids=IDS).logits
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            want = peft.PeftModel.from_pretrained(base, out)(input_ids=IDS).logits
        made = merge(folder, out, "source")(input_ids=IDS).logits
    torch.testing.assert_close(made, want)
    assert (want - alone).abs().max() > 1e-2


def test_merged_into_nf4_is_the_model_that_was_trained(folder, adapted):
    model, _, out = adapted
    with torch.no_grad():
        want = model.model(input_ids=IDS).logits
        made = merge(folder, out, "nf4")(input_ids=IDS).logits
    torch.testing.assert_close(made, want)


def test_windows_are_each_taken_once_before_any_is_taken_again():
    windows = Windows([np.arange(400)], 10)
    assert (len(windows.training), len(windows.held_out)) == (38, 2)
    seen = np.concatenate([windows.batch(step, 2, 5)[:, 0] for step in range(19)])
    assert sorted(seen) == sorted(windows.training[:, 0])
    again = np.concatenate([windows.batch(step, 2, 5)[:, 0] for step in range(19, 38)])
    assert sorted(again) == sorted(seen)
    assert not np.array_equal(again, seen)


def test_text_without_a_window_is_refused():
    with pytest.raises(ConfigError, match=r"at least 16 tokens, one window; got 9\."):
        Windows([np.arange(9)], 16)


def test_the_rate_rises_and_falls():
    shares = [rate_share(step, 100) for step in range(100)]
    assert max(shares) == 1.0
    assert np.argmax(shares) == 4
    assert 0 < shares[-1] < 0.02
    assert rate_share(0, 1) == 1.0


def test_a_matrix_that_is_not_a_linear_is_refused(folder):
    with pytest.raises(UnsupportedArchitectureError, match=r"got model\.layers\.0\.mlp\.experts"):
        RoundedModel(
            load_causal_model(folder), {"model.layers.0.mlp.experts.0.w1": IntegerGrid(4, 32)}
        )
