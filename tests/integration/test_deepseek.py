"""Latent attention with what else there is: caches of other types, MTP modules, FP8, quantizing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.equality import check_lattice
from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.core.model.forward_work import decoder_shape
from quire.models.config.config_reader import read_model_config
from tests.draft_heads import expert_module_tensors, write_head, write_target
from tests.integration.conftest import lattice
from tools.random_checkpoint import PRESETS, random_checkpoint

Create = Callable[..., LLM]
PRESET = "tiny-deepseek"
PROMPTS = ["Once upon a time", "The dog ran to the park and", "List three fruits."]
PARAMS = [
    SamplingParams(max_tokens=24, seed=i, temperature=t, ignore_eos=True, logprobs=2)
    for i, t in enumerate((0.0, 0.8, 1.0))
]


def answers(llm: LLM) -> list[Any]:
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, PARAMS)]
    return [(output.token_ids, output.text, output.logprobs) for output in outputs]


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "int8", "bfloat16"])
@pytest.mark.parametrize("block_size", [8, 16])
def test_caches_of_other_types(
    checkpoint: Callable[..., Path], device: str, kv_cache_dtype: str, block_size: int
) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    settings = {"kv_cache_dtype": kv_cache_dtype, "block_size": block_size}
    outcomes = check_lattice(checkpoint(PRESET), lattice(), device=device, **settings)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


def test_a_cache_of_4_bits_is_refused(create_llm: Create) -> None:
    with pytest.raises(ConfigError, match="int4 needs keys and values apart"):
        create_llm(PRESET, kv_cache_dtype="int4")


def test_work_and_bytes_of_latents(checkpoint: Callable[..., Path]) -> None:
    config = read_model_config(checkpoint(PRESET))
    spec = config.kv_cache_spec(16, "bfloat16")
    assert spec.token_bytes == 3 * (48 + 8) * 2
    shape = decoder_shape(config, 0, spec.token_bytes)
    # Scores of a latent and a rotated part, sums of a latent: 2 operations each, of 4 heads.
    assert shape.pair_flops == 3 * 4 * 2 * (48 + 8 + 48)
    down = 64 * (32 + 48 + 8)
    attention = down + 32 * 4 * 32 + 48 * 4 * (24 + 16) + 4 * 16 * 64
    mlps = 64 * 3 * 128 + 2 * 64 * (3 * (2 * 64 + 64) + 8)
    assert shape.token_flops == 2 * (3 * attention + mlps)


@pytest.fixture
def with_module(checkpoint: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return a target that brings a module, and the module in a folder of its own."""
    plain = checkpoint(PRESET)
    tensors = expert_module_tensors(plain)
    own = write_target(plain, tmp_path / "target", tensors)
    config = json.loads((plain / "config.json").read_text("utf-8"))
    return own, write_head(tmp_path / "head", tensors, config)


def test_a_module_drafts_and_changes_nothing(
    create_llm: Create, checkpoint: Callable[..., Path], with_module: tuple[Path, Path], device: str
) -> None:
    own, head = with_module
    expected = answers(create_llm(checkpoint(PRESET)))
    assert answers(create_llm(own)) == expected
    for target, model in ((own, {}), (checkpoint(PRESET), {"model": str(head)})):
        asked = {"method": "mtp", "adaptive": False, "num_speculative_tokens": 3, **model}
        llm = create_llm(target, speculative_config=asked)
        if device == "cpu":
            assert answers(llm) == expected
        else:
            answers(llm)
        assert llm.engine.stats()['spec_decode_num_drafts{method="mtp"}'] != 0


def test_a_module_computes_what_transformers_does(
    checkpoint: Callable[..., Path], with_module: tuple[Path, Path], device: str
) -> None:
    """Its logits, of pairs of features and tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

    from quire.kernels.batch.forward_batch import ForwardBatch
    from quire.kernels.registry import create_backend
    from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
    from quire.models.draft_heads.mtp import load_mtp, read_mtp
    from quire.models.loader import load_model

    _, folder = with_module
    target = load_model(checkpoint(PRESET), create_backend(device, threads=1), dtype="float32")
    tensors, backend = HeadTensors(folder), target.backend
    shape = read_mtp(tensors, target.config)
    head = load_mtp(shape, HeadBuilder(tensors, backend, "float32"), target, 64)
    count, rng = 20, np.random.default_rng(3)
    tokens = rng.integers(0, 320, count).astype(np.int32)
    features = rng.standard_normal((count, 64), np.float32)
    positions = np.arange(count, dtype=np.int32)
    batch = ForwardBatch(
        input_ids=tokens,
        positions=positions,
        slot_mapping=16 + positions.astype(np.int64),
        block_tables=np.array([[1, 2]], np.int32),
        query_start_loc=np.array([0, count], np.int32),
        seq_lens=np.array([count], np.int32),
        logits_indices=positions,
    )
    cache = backend.kv_cache(shape.config.kv_cache_spec(16, "float32"), 3)
    _, logits = head.forward(backend.upload(batch), backend.from_numpy(features), cache)

    stored = {
        name: torch.from_numpy(x) for name, x in load_file(folder / "model.safetensors").items()
    }
    prefix = "model.layers.3."
    own = {name.removeprefix(prefix): x for name, x in stored.items()}
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    layer = modeling.DeepseekV3DecoderLayer(config, 1).eval()
    experts = layer.mlp.experts
    with torch.no_grad():
        for name, parameter in [*layer.named_parameters(), *layer.named_buffers()]:
            if name in own:
                parameter.copy_(own[name])
        for e in range(config.n_routed_experts):
            gate, up, down = (
                own[f"mlp.experts.{e}.{n}_proj.weight"] for n in ("gate", "up", "down")
            )
            experts.gate_up_proj[e] = torch.cat([gate, up])
            experts.down_proj[e] = down

        def norm(x: Any, name: str) -> Any:
            return torch.nn.functional.rms_norm(x, (64,), own[f"{name}.weight"], 1e-6)

        embeds = own["embed_tokens.weight"][torch.from_numpy(tokens).long()]
        mixed = torch.cat([norm(embeds, "enorm"), norm(torch.from_numpy(features), "hnorm")], 1)
        x = (mixed @ own["eh_proj.weight"].T)[None]
        rotary = modeling.DeepseekV3RotaryEmbedding(config)
        angles = rotary(x, torch.arange(count)[None])
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        out = layer(x, attention_mask=mask, position_embeddings=angles)
        out = (out[0] if isinstance(out, tuple) else out)[0]
        want = norm(out, "shared_head.norm") @ own["shared_head.head.weight"].T
    got = np.asarray(backend.to_numpy(logits))
    assert np.abs(got - want.numpy()).max() <= 1e-4 * np.abs(want.numpy()).max()


def in_fp8_blocks(folder: Path, out: Path) -> Path:
    """Write a checkpoint as DeepSeek does: E4M3 with a scale of each 128 x 128 elements.

    Returns:
        A checkpoint of the floats that those are.
    """
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_tensors
    from safetensors.torch import save_file as save_tensors

    shutil.copytree(folder, out)
    exact = shutil.copytree(folder, out.with_name("exact"))
    stored, floats = {}, {}
    for name, values in load_tensors(folder / "model.safetensors").items():
        stored[name] = floats[name] = values
        if not name.endswith("_proj.weight") and "_proj_with_mqa" not in name:
            continue
        rows, columns = (-(-size // 128) for size in values.shape)
        scales = torch.rand(rows, columns) * 0.01 + 0.005
        wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        wide = wide[: values.shape[0], : values.shape[1]]
        codes = (values / wide).to(torch.float8_e4m3fn)
        stored[name], stored[f"{name}_scale_inv"] = codes, scales
        floats[name] = codes.float() * wide
    save_tensors(stored, out / "model.safetensors")
    save_tensors(floats, exact / "model.safetensors")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return exact


def test_fp8_in_blocks(create_llm: Create, tmp_path: Path) -> None:
    """Rows that change their places at load take their scales along, across the edge of a block."""
    fields = {"num_attention_heads": 6, "num_key_value_heads": 6, "kv_lora_rank": 124}
    random_checkpoint(tmp_path / "plain", {**PRESETS[PRESET], **fields})
    exact = in_fp8_blocks(tmp_path / "plain", tmp_path / "fp8")
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=3)
    found = []
    for folder, more in ((exact, {}), (tmp_path / "fp8", {"activations": "fp32"})):
        llm = create_llm(folder, dtype="float32", **more)
        (output,) = llm.generate([list(range(40))], params)
        rows = output.prompt_logprobs[1:]
        found.append([{key: one.logprob for key, one in row.items()} for row in rows])
    far = [abs(a[key] - b[key]) for a, b in zip(*found, strict=True) for key in a.keys() & b.keys()]
    assert len(far) > 100
    assert max(far) < 1e-4
