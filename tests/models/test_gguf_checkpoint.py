"""Checkpoints through GGUF files: the same logits as from the folder, whatever the family."""

import json
import logging
from array import array
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_checkpoint import GgufCheckpoint, row_order
from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import FORMS, QUANTIZED, dequantize
from quire.checkpoints.gguf.gguf_writer import TensorPlan, write_gguf
from quire.core.errors import (
    ConfigError,
    ModelLoadError,
    UnsupportedArchitectureError,
    WeightMismatchError,
)
from quire.kernels.registry import create_backend
from quire.models import model_builder
from quire.models.config.config_reader import read_model_config
from quire.models.gguf import gguf_config
from quire.models.gguf.gguf_architectures import ARCHITECTURES
from quire.models.gguf.gguf_export import GgufExport
from quire.models.loader import load_model
from quire.quantization.quantization_plan import QuantizationPlan
from quire.system.machine import Machine
from tests.models.gguf_settings import SETTINGS

torch = pytest.importorskip("torch")

#: Those that name a factor for each frequency.
FACTORS = ("llama", "llama4-scaled")


@pytest.fixture(scope="module")
def reference():
    return create_backend("reference", threads=1)


@pytest.fixture(scope="module")
def folder(saved_oracle):
    """Return a function that gives the folder of an entry of SETTINGS, made once."""
    return lambda name: saved_oracle(*SETTINGS[name])[1]


@pytest.fixture
def export(folder, tmp_path):
    """Return a function that converts an entry of SETTINGS; ``change`` may edit the export."""

    def convert(name, type_name="F32", change=None):
        exported = GgufExport(folder(name), type_name)
        if change is not None:
            change(exported)
        path = tmp_path / "model.gguf"
        write_gguf(path, exported.metadata, exported.tensors)
        return path

    return convert


def set_value(key, value):
    return lambda exported: exported.metadata.__setitem__(key, value)


def as_floats(value):
    """Return a value as a file can hold it: numbers rounded to float32."""
    if is_dataclass(value):
        return {field.name: as_floats(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_floats, value))
    return float(np.float32(value)) if type(value) is float else value


@pytest.mark.parametrize("name", SETTINGS)
def test_same_configuration(name, folder, saved_gguf):
    want, got = read_model_config(folder(name)), read_model_config(saved_gguf(*SETTINGS[name]))
    changed = {"architecture": got.architecture}  # Mistral is a Llama there.
    if name in FACTORS:
        assert got.rope.scaling["rope_type"] == "factors"
        changed["rope"] = got.rope
    want = replace(want, bos_token_id=None, eos_token_ids=(), **changed)
    for field in want.__slots__:
        assert as_floats(getattr(got, field)) == as_floats(getattr(want, field)), field


@pytest.mark.parametrize("name", SETTINGS)
def test_float32_logits_are_the_folders(
    name, folder, saved_gguf, reference, create_driver, random_prompts
):
    (prompt,) = random_prompts([40])
    want = create_driver(folder(name), reference).step([np.array(prompt)])
    got = create_driver(saved_gguf(*SETTINGS[name]), reference).step([np.array(prompt)])
    if name in FACTORS:  # Their frequencies are divided by rounded factors.
        assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    else:
        assert np.array_equal(got, want)


@pytest.mark.parametrize("type_name", ["F16", "BF16"])
@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_half_precision_logits_are_the_folders(
    name, type_name, folder, export, backend, create_driver, random_prompts
):
    dtype = {"F16": "float16", "BF16": "bfloat16"}[type_name]
    (prompt,) = random_prompts([20])
    want = create_driver(folder(name), backend, dtype=dtype).step([np.array(prompt)])
    driver = create_driver(export(name, type_name), backend)
    assert driver.decoder.config.dtype == dtype
    got = driver.step([np.array(prompt)])
    if name == "mixtral":  # The router is float32 in the file; the folder's is rounded.
        assert np.abs(got - want).max() < 0.1 * np.abs(want).max()
    else:
        assert np.array_equal(got, want)


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantized_file_has_the_quantized_values(
    type_name, export, backend, reference, create_driver, random_prompts, caplog
):
    path = export("mixtral", type_name)
    with caplog.at_level(logging.INFO):
        driver = create_driver(path, backend)
    assert f"tensors are 23 {type_name}, 10 F32" in caplog.text
    assert f"50 matrices are held in {FORMS[type_name]}" in caplog.text
    assert driver.decoder.config.dtype == "float16"
    (prompt,) = random_prompts([12])
    got = create_driver(path, reference).step([np.array(prompt)])
    exact = create_driver(path, backend, plan=QuantizationPlan(exact_activations=True))
    assert np.abs(exact.step([np.array(prompt)]) - got).max() < 2e-3 * np.abs(got).max()
    # Activations of 8 bits: half a percent of a product, which three layers add up.
    rounded = driver.step([np.array(prompt)])
    assert np.sqrt(np.mean((rounded - got) ** 2)) < 0.04 * np.sqrt(np.mean(got**2))
    # A float file of the dequantized values is the same model.
    file = GgufFile(path)
    checkpoint = GgufCheckpoint(file, read_model_config(path))
    plans = []
    for name, tensor in file.tensors.items():
        data = np.frombuffer(file.data(name), np.uint8)
        values = dequantize(tensor.layout.name, data[None])
        plans.append(
            TensorPlan(
                name, LAYOUTS["F32"], tensor.shape, lambda values=values: iter([values.tobytes()])
            )
        )
    plain = path.with_name("plain.gguf")
    write_gguf(plain, file.metadata, plans)
    assert np.array_equal(create_driver(plain, reference).step([np.array(prompt)]), got)
    # Experts' shares together are the stored tensor.
    shares = [checkpoint.rows(f"blk.0.ffn_up.{expert}.weight") for expert in range(4)]
    assert np.concatenate(shares).tobytes() == bytes(file.data("blk.0.ffn_up_exps.weight"))


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_every_quantized_type_loads(type_name, tmp_path, create_driver, reference, caplog):
    """Random blocks under a tiny Llama: values are the dequantizer's, rows in our order."""
    layout = LAYOUTS[type_name]
    generator = np.random.default_rng(0)
    width, heads, vocab = 256, 4, 32
    shapes = {"token_embd": (vocab, width), "blk.0.ffn_gate": (256, width)}
    shapes |= {f"blk.0.attn_{n}": (width, width) for n in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_up": (256, width), "blk.0.ffn_down": (width, 256)}
    stored = {}
    for name, shape in shapes.items():
        blocks = generator.integers(
            0, 256, (shape[0] * width // layout.block_size, layout.block_bytes), np.uint8
        )
        # Any float16 below 0.01: exponent bits small wherever a scale may be.
        blocks &= 0x1F
        stored[name] = blocks.reshape(shape[0], -1)
    plans = [
        TensorPlan(f"{n}.weight", layout, shapes[n], lambda b=b: iter([b.tobytes()]))
        for n, b in stored.items()
    ]
    ones = np.ones(width, np.float32).tobytes()
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        plans.append(TensorPlan(f"{name}.weight", LAYOUTS["F32"], (width,), lambda: iter([ones])))
    metadata = {
        "general.architecture": "llama", "llama.context_length": 64,
        "llama.embedding_length": width, "llama.block_count": 1, "llama.feed_forward_length": 256,
        "llama.attention.head_count": heads, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, plans)
    checkpoint = GgufCheckpoint(GgufFile(path), read_model_config(path))
    for name, blocks in stored.items():
        values = dequantize(type_name, blocks)
        if name.endswith(("_q", "_k")):
            values = values.reshape(heads, 32, 2, width).swapaxes(1, 2).reshape(width, width)
        matrix = checkpoint.tensor(f"{name}.weight")
        assert matrix.form == FORMS[type_name]
        assert np.array_equal(matrix.float32(), values)
    logits = create_driver(path, reference).step([np.arange(5)])
    assert np.isfinite(logits).all()


def test_partial_rotation_reorders_only_what_is_rotated(export):
    config = read_model_config(export("mistral"))
    rope = replace(config.rope, rotary_dim=4)
    config = replace(config, num_heads=2, num_kv_heads=1, head_dim=6, rope=rope)
    first, second = [0, 2, 1, 3, 4, 5], [6, 8, 7, 9, 10, 11]
    assert row_order("blk.0.attn_q.weight", config).tolist() == first + second
    assert row_order("blk.7.attn_k.bias", config).tolist() == first
    third, fourth = [12, 14, 13, 15, 16, 17], [18, 19, 20, 21, 22, 23]
    fused = row_order("blk.0.attn_qkv.weight", config).tolist()
    assert fused == first + second + third + fourth
    assert row_order("blk.0.attn_v.weight", config) is None


REFUSED = {
    "general.architecture": (
        "mamba",
        "general.architecture must be one of llama, llama4, mistral3",
    ),
    "llama.attention.head_count": (5, "head_count_kv must divide|embedding_length"),
    "llama.block_count": (10**6, "llama.block_count must be an integer of at most"),
    "llama.embedding_length": ("wide", "llama.embedding_length must be an integer"),
    "llama.vocab_size": (7, "llama.vocab_size must be 211"),
    "llama.logit_scale": (0.5, "llama.logit_scale is an option"),
    "llama.rope.scaling.type": ("longrope", "must be none, linear or yarn"),
    "llama.attention.value_length": (8, "value_length must be 16"),
    "llama.rope.dimension_count": (15, "must rotate an even part"),
    "tokenizer.ggml.tokens": (["x"] * 300, "tokens must have at most 211"),
    "split.count": (3, "split.count must be 1.*got 3. Join the parts with llama-gguf-split"),
    "tokenizer.ggml.eos_token_id": ("x", "eos_token_id must be an integer"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_metadata_out_of_range_is_refused(key, export):
    value, message = REFUSED[key]
    with pytest.raises(ModelLoadError, match=message) as caught:
        read_model_config(export("llama-biased-tied", change=set_value(key, value)))
    assert "model.gguf" in str(caught.value)


@pytest.mark.parametrize("key", ["attention.sliding_window", "rope.dimension_count"])
@pytest.mark.parametrize("value", [array("Q", [2**64 - 1]), 16.0, "", "16", []], ids=repr)
def test_counts_of_positions_are_integers(key, value, export):
    """A huge window was a TypeError of the kernels; what was no integer was ignored."""
    with pytest.raises(ModelLoadError, match=rf"llama.{key} must be an integer >= 0"):
        read_model_config(export("llama-biased-tied", change=set_value(f"llama.{key}", value)))


def test_ids_of_no_token(export):
    """2**32 - 1 is llama.cpp's null token; it was an end token beyond the vocabulary."""
    ids = {f"tokenizer.ggml.{kind}_token_id": 2**32 - 1 for kind in ("bos", "eos", "padding")}
    path = export("llama-biased-tied", change=lambda e: e.metadata.update(ids))
    config = read_model_config(path)
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


def test_context_beyond_the_memory_is_one_clear_error(export, reference, monkeypatch):
    """The tables of such a context ended in a MemoryError, or took all memory there was."""
    monkeypatch.setattr(model_builder, "read_machine", lambda: Machine(1, 2**33, 2**33))
    path = export("llama-biased-tied", change=set_value("llama.context_length", 2**28))
    with pytest.raises(ConfigError, match=r"RoPE tables of a context of \d+ tokens must fit in"):
        load_model(path, reference)
    load_model(path, reference, max_model_len=64)


@pytest.mark.parametrize(
    "key", ["context_length", "embedding_length", "attention.layer_norm_rms_epsilon"]
)
def test_required_metadata(key, export):
    with pytest.raises(ModelLoadError, match=f"llama.{key} is required"):
        read_model_config(export("mixtral", change=lambda e: e.metadata.pop(f"llama.{key}")))


def test_unknown_key_is_named_in_the_log(export, caplog):
    read_model_config(export("mixtral", change=set_value("llama.novelty", 1)))
    assert "llama" not in caplog.records[-1].getMessage().split("effect: ")[1]
    assert "novelty" in caplog.text


def test_layers_of_different_sizes_are_refused(export):
    change = set_value("llama.attention.head_count_kv", array("i", [2, 1, 2]))
    with pytest.raises(UnsupportedArchitectureError, match="the same in all layers"):
        read_model_config(export("mixtral", change=change))


def test_tensors_must_be_the_models(export, reference):
    path = export("qwen3", change=lambda e: e.tensors.pop())
    with pytest.raises(WeightMismatchError, match="missing blk.2.ffn_down.weight"):
        load_model(path, reference)
    path = export("mixtral", change=set_value("llama.expert_count", 3))
    with pytest.raises(WeightMismatchError, match=r"ffn_gate_exps.weight must have shape \(3,"):
        load_model(path, reference)


def test_experts_twice_are_refused(export, reference):
    def repeat(exported):
        (stored,) = (t for t in exported.tensors if t.name == "blk.1.ffn_up_exps.weight")
        chunk = bytes(stored.nbytes // 4)
        name, shape = "blk.1.ffn_up.2.weight", stored.shape[1:]
        exported.tensors.append(TensorPlan(name, stored.layout, shape, lambda: iter([chunk])))

    with pytest.raises(WeightMismatchError, match=r"ffn_up.2.weight must be there once"):
        load_model(export("mixtral", change=repeat), reference)


def test_vocabulary_without_weights_is_no_model(export):
    path = export("qwen3", change=lambda e: e.tensors.clear())
    with pytest.raises(ModelLoadError, match="must be an integer of at most 0|token_embd"):
        read_model_config(path)


FAMILY_REFUSED = {
    "command-r.logit_scale": ("cohere", "x", "logit_scale must be a finite number"),
    "gptneox.use_parallel_residual": ("gpt-neox", 1, "must be true or false"),
    "granite.rope.scaling.finetuned": ("granite", False, "is an option that Quire does not"),
    "granite.logit_scale": ("granite", -1.0, "logit_scale must be a finite number > 0"),
    "gemma.final_logit_softcapping": ("gemma", 30.0, "is an option that Quire does not"),
    "gemma3.attention.scale": ("gemma3", 0.5, "is an option that Quire does not"),
    "gemma3.attention.sliding_window_pattern": (
        "gemma3",
        [True],
        "a number of layers or one flag a layer",
    ),
    "gemma3.attention.sliding_window": ("gemma3", 0, "is required where"),
    "gemma.rope.freq_base_swa": ("gemma", 1e4, "is an option that Quire does not"),
    "phi2.attention.value_length": ("phi", 8, "value_length must be 16"),
    "phi3.rope.scaling.type": ("phi3-long", "yarn", "must be longrope where rope_factors_long"),
    "phi3.rope.scaling.attn_factor": ("phi3-long", 0.0, "must be a number > 0"),
    "llama.rope.scaling.attn_factor": ("llama-linear", 1.5, "must be 1 for the type linear"),
    "glm4.rope.dimension_sections": ("glm4", array("i", [2, 2, 2, 2]), "does not implement"),
    "glm4.nextn_predict_layers": ("glm4", 1, "is an option that Quire does not"),
    "llama4.attention.sliding_window": ("llama4", 4096, "is an option that Quire does not"),
    "llama4.interleave_moe_layer_step": ("llama4", 0, "must be an integer >= 1"),
    "mistral3.attention.temperature_scale": ("ministral3", -1.0, "must be a number >= 0"),
    "glm4moe.expert_gating_func": ("glm4-moe", 1, "is an option that Quire does not"),
    "stablelm.rope.dimension_count": ("stablelm", 5, "must rotate an even part"),
    "phi2.expert_count": ("phi", 4, "is an option that Quire does not"),
}


@pytest.mark.parametrize("key", FAMILY_REFUSED)
def test_options_of_a_family_are_read_or_refused(key, export):
    name, value, message = FAMILY_REFUSED[key]
    with pytest.raises(ModelLoadError, match=message) as caught:
        read_model_config(export(name, change=set_value(key, value)))
    assert key in str(caught.value)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_field_of_the_tables_is_read(name, export, monkeypatch):
    """A key that stands in a table, and that no reader asks for, would have no effect."""
    made = []

    class Recorded(gguf_config._MetadataFields):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    path = export(name)
    monkeypatch.setattr(gguf_config, "_MetadataFields", Recorded)
    read_model_config(path)
    (fields_read,) = made
    # What a head's size follows from is compared with it later.
    assert set(fields_read.values) - fields_read.read <= {"head_dim"}


@pytest.mark.parametrize("name", ["llama-biased-tied", "granite", "glm4", "qwen2", "phi"])
def test_queries_keys_and_values_in_one_matrix(
    name, folder, export, reference, create_driver, random_prompts
):
    """As llama.cpp's converter writes them when asked to, and others did."""

    def fuse(exported):
        plans = {plan.name: plan for plan in exported.tensors}
        for layer in range(exported.config.num_layers):
            for end in ("weight", "bias"):
                names = [f"blk.{layer}.attn_{part}.{end}" for part in "qkv"]
                parts = [plans.pop(name) for name in names if name in plans]
                if parts:
                    rows = sum(part.shape[0] for part in parts)
                    chunks = [chunk for part in parts for chunk in part.chunks()]
                    fused = f"blk.{layer}.attn_qkv.{end}"
                    shape = (rows, *parts[0].shape[1:])
                    plans[fused] = TensorPlan(fused, parts[0].layout, shape, chunks.__iter__)
        exported.tensors[:] = plans.values()

    (prompt,) = random_prompts([20])
    want = create_driver(export(name), reference).step([np.array(prompt)])
    got = create_driver(export(name, change=fuse), reference).step([np.array(prompt)])
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    ("pattern", "want"),
    [
        (3, (True, True, False)),
        (1, (False,) * 3),
        (array("i", [0, 1, 0]), (False, True, False)),
        ([True, False, True], (True, False, True)),
        (0, (True,) * 3),
    ],
)
def test_which_layers_have_the_window(pattern, want, export):
    key = "gemma3.attention.sliding_window_pattern"
    config = read_model_config(export("gemma3", change=set_value(key, pattern)))
    assert config.layer_windows == want
    key = "llama.attention.sliding_window_pattern"
    config = read_model_config(export("ministral", change=set_value(key, pattern)))
    assert config.layer_windows == want and config.sliding_window == 9


def test_mistral_under_the_name_of_its_successor(export):
    """As Mistral Small 3.1 is: queries that do not grow."""
    path = export("ministral3", change=set_value("mistral3.attention.temperature_scale", 0.0))
    config = read_model_config(path)
    assert (config.architecture, config.query_scaling) == ("MistralForCausalLM", None)
    assert config.rope.scaling["rope_type"] == "yarn" and config.sliding_window is None


def test_no_window_where_a_file_names_none(export):
    def drop(exported):
        del exported.metadata["gemma3.attention.sliding_window"]
        del exported.metadata["gemma3.attention.sliding_window_pattern"]

    config = read_model_config(export("gemma3", change=drop))
    assert not any(map(config.has_window, range(3)))


def test_rotated_part_of_every_size(export):
    """30 of 44 elements became 29.99, and that 29."""
    export("phi")
    for rotated in range(2, 17, 2):
        path = export("phi", change=set_value("phi2.rope.dimension_count", rotated))
        assert read_model_config(path).rope.rotary_dim == rotated


def test_attention_of_the_largest_gemma():
    """llama.cpp knows Gemma 3 of 27 billion by its layers, and scales its scores by D / N."""
    scalar = ARCHITECTURES["gemma3"].derived["query_pre_attn_scalar"]
    sizes = {"hidden_size": 5376, "num_attention_heads": 32, "head_dim": 128}
    assert scalar({**sizes, "num_hidden_layers": 62}, ()) == 168
    assert scalar({**sizes, "num_hidden_layers": 48}, ()) == 128


def test_rows_of_part_blocks_become_float16(export, caplog):
    path = export("gpt2", "Q8_0")
    assert "no whole number of Q8_0 blocks" in caplog.text
    layouts = {n: t.layout.name for n, t in GgufFile(path).tensors.items()}
    assert layouts["blk.0.attn_qkv.weight"] == "F16"
    assert layouts["blk.0.ffn_down.weight"] == "Q8_0"
    assert layouts["position_embd.weight"] == "F32"


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("F16", 1e5),
        ("F16", np.nan),
        ("Q8_0", 1e7),
        ("Q8_0", np.nan),
        ("Q4_0", np.inf),
        ("Q4_1", 1e5),
    ],
)
def test_values_beyond_float16_are_refused(type_name, value, folder, tmp_path):
    """A scale that is infinite or no number was written, and spoiled its block."""
    from safetensors.numpy import load_file, save_file

    source = tmp_path / "large"
    source.mkdir()
    for name in ("config.json", "model.safetensors"):
        (source / name).write_bytes((folder("qwen3") / name).read_bytes())
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = value
    save_file(tensors, source / "model.safetensors")
    exported = GgufExport(source, type_name)
    with pytest.raises(ModelLoadError, match="layers.1.mlp.up_proj.weight must fit the float16 of"):
        write_gguf(tmp_path / "out.gguf", exported.metadata, exported.tensors)
    assert json.loads((source / "config.json").read_text())
    assert not (tmp_path / "out.gguf").exists()
