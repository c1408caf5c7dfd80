"""Heads written and read again, in the names that published checkpoints have."""

import json

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from quire.core.errors import ModelLoadError  # noqa: E402
from quire.training.head_files import load_head, save_head  # noqa: E402
from tests.training.oracle import draft_logits  # noqa: E402

LAYER = [
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    "post_attention_layernorm.weight",
]
PUBLISHED = {
    "medusa": [f"{i}.{j}.linear.{part}" for i in range(4) for j in (0, 1)
               for part in ("weight", "bias")],
    "medusa-own-head": [f"{i}.{part}" for i in range(3)
                        for part in ("0.linear.weight", "0.linear.bias", "1.weight")],
    "eagle": ["fc.weight", *(f"layers.0.{name}" for name in LAYER)],
    "eagle3": ["fc.weight", "norm.weight", *(f"midlayer.{name}" for name in LAYER),
               "midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight"],
    "mtp": [f"model.layers.6.{name}" for name in (
        "enorm.weight", "hnorm.weight", "eh_proj.weight", "input_layernorm.weight",
        "shared_head.norm.weight", *LAYER)],
}  # fmt: skip
PUBLISHED["eagle3-own-head"] = [*PUBLISHED["eagle3"], "lm_head.weight"]
PUBLISHED["eagle3-draft-vocabulary"] = [*PUBLISHED["eagle3-own-head"], "d2t", "t2d"]


def logits_of(head):
    generator = torch.Generator().manual_seed(8)
    width = 4 * head.vocabulary.head.shape[1]
    return draft_logits(head, torch.arange(9), torch.randn(8, width, generator=generator), 3)


def rounded(head):
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.bfloat16())
    return head


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_head_comes_back_under_published_names(name, create_head, vocabulary, tmp_path):
    head = rounded(create_head(name))
    save_head(head, tmp_path, "quire-tiny", 2048)
    (file,) = tmp_path.glob("*.safetensors")
    assert (file.name == "medusa_lm_head.safetensors") == name.startswith("medusa")
    assert sorted(load_file(file)) == sorted(PUBLISHED[name])
    again = load_head(tmp_path, vocabulary)
    assert again.method == head.method
    assert again.captured_layers == head.captured_layers
    torch.testing.assert_close(logits_of(again), logits_of(head), rtol=0, atol=0)


def test_the_scale_of_its_inputs_is_stored_in_the_matrix(create_head, vocabulary, tmp_path):
    head = rounded(create_head("eagle3"))
    want = logits_of(head)
    states = torch.randn(50, 4 * 32, generator=torch.Generator().manual_seed(10))
    states[:, 32:] *= torch.tensor([2.0, 8.0, 64.0]).repeat_interleave(32)
    head.scale_to(states)
    scaled = states[:, 32:] * head.input_scale
    squares = scaled.unflatten(1, (3, 32)).square().mean((0, 2))
    torch.testing.assert_close(squares, torch.ones(3))
    got = logits_of(head)
    assert not torch.allclose(got, want)
    save_head(head, tmp_path, "quire-tiny", 2048)
    torch.testing.assert_close(logits_of(load_head(tmp_path, vocabulary)), got, rtol=0.05, atol=0.3)


def test_the_layout_of_speculators_is_read(create_head, vocabulary, tmp_path):
    head = rounded(create_head("eagle3-draft-vocabulary"))
    save_head(head, tmp_path, "quire-tiny", 2048)
    config = json.loads((tmp_path / "config.json").read_text())
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
            "head_dim", "rms_norm_eps", "rope_theta", "vocab_size")  # fmt: skip
    theirs = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": config["eagle_aux_hidden_state_layer_ids"],
        "transformer_layer_config": {key: config[key] for key in keys},
    }
    (tmp_path / "config.json").write_text(json.dumps(theirs))
    weights = load_file(tmp_path / "model.safetensors")
    weights = {name.replace("midlayer.", "layers.0."): part for name, part in weights.items()}
    weights["embed_tokens.weight"] = vocabulary.embedding.clone()
    save_file(weights, tmp_path / "model.safetensors")
    torch.testing.assert_close(logits_of(load_head(tmp_path, vocabulary)), logits_of(head))


@pytest.mark.parametrize("damage", ["no config", "no tensor", "one tensor more"])
def test_what_does_not_fit_is_refused(damage, create_head, vocabulary, tmp_path):
    save_head(create_head("eagle"), tmp_path, "quire-tiny", 2048)
    weights = load_file(tmp_path / "model.safetensors")
    if damage == "no config":
        (tmp_path / "config.json").unlink()
    elif damage == "no tensor":
        del weights["layers.0.mlp.up_proj.weight"]
    else:
        weights["layers.1.mlp.up_proj.weight"] = torch.zeros(2, 2)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"\[head\]"):
        load_head(tmp_path, vocabulary)
