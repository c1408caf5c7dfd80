"""Write a checkpoint of true shapes and random weights: for benchmarks, and for trying a family.

``python -m tools.random_checkpoint llama-3.2-1b OUT --dtype bfloat16``

The folder is complete: config.json, model.safetensors, and a byte-level tokenizer without merges.
It is written tensor by tensor, so memory stays small whatever the model. The text is noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import family_names
from quire.models.vision.encoder_loader import vision_weights
from quire.models.weight_map import WeightMap

FORMAT_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
CHUNK = 1 << 22

END_OF_TEXT = 256
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: Of a model that reads pictures, in place of the others: a token, and a template that shows it.
PICTURE, PICTURE_TOKEN = 259, "<image>"
PICTURE_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content if part.type == 'image' %}<image>\n{% endfor %}"
    "{% for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _dense(architecture: str, sizes: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    vocab_size, hidden_size, layers, heads, kv_heads, head_dim, intermediate_size = sizes
    return {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate_size,
        "max_position_embeddings": 2048,
        **fields,
    }


def _gpt2(vocab_size: int, hidden_size: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_embd": hidden_size,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 1024,
    }


def _llava(text: dict[str, Any], sizes: tuple[int, ...]) -> dict[str, Any]:
    image_size, patch_size, hidden_size, layers, heads, intermediate_size = sizes
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": PICTURE,
        "text_config": text,
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": hidden_size,
            "intermediate_size": intermediate_size,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "image_size": image_size,
            "patch_size": patch_size,
        },
    }


#: vocabulary, hidden, layers, heads, KV heads, head dim, MLP width
TINY = (320, 64, 3, 4, 2, 16, 128)
LLAMA_1B = _dense(
    "LlamaForCausalLM",
    (128256, 2048, 16, 32, 8, 64, 8192),
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=LLAMA3_ROPE,
    tie_word_embeddings=True,
)
QWEN_HALF_B = _dense(
    "Qwen2ForCausalLM",
    (151936, 896, 24, 14, 2, 64, 4864),
    max_position_embeddings=32768,
    rope_theta=1e6,
    tie_word_embeddings=True,
)
PRESETS: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": LLAMA_1B,
    "llava-1b": _llava(LLAMA_1B, (336, 14, 1024, 24, 16, 4096)),
    # Large pictures and a small decoder; as wide as So400m, with few of its layers.
    "llava-0.5b-896": _llava(QWEN_HALF_B, (896, 14, 1152, 5, 16, 4304)),
    "qwen2.5-0.5b": QWEN_HALF_B,
    "qwen3-0.6b": _dense(
        "Qwen3ForCausalLM",
        (151936, 1024, 28, 16, 8, 128, 3072),
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=True,
    ),
    "gpt2": _gpt2(50257, 768, 12, 12),
    "tiny-llama": _dense("LlamaForCausalLM", TINY, rope_scaling=LLAMA3_ROPE | {"factor": 8.0}),
    "tiny-mistral": _dense("MistralForCausalLM", TINY, sliding_window=64),
    "tiny-mixtral": _dense("MixtralForCausalLM", TINY, num_local_experts=4, num_experts_per_tok=2),
    "tiny-qwen2-moe": _dense(
        "Qwen2MoeForCausalLM",
        TINY,
        model_type="qwen2_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=96,
        mlp_only_layers=[1],
    ),
    "tiny-deepseek": _dense(
        "DeepseekV3ForCausalLM",
        TINY,
        model_type="deepseek_v3",
        num_key_value_heads=4,
        head_dim=8,
        q_lora_rank=32,
        kv_lora_rank=48,
        qk_nope_head_dim=24,
        qk_rope_head_dim=8,
        v_head_dim=16,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        first_k_dense_replace=1,
    ),
    "tiny-qwen2": _dense("Qwen2ForCausalLM", TINY, tie_word_embeddings=True),
    "tiny-qwen3": _dense("Qwen3ForCausalLM", TINY, tie_word_embeddings=True),
    "tiny-gpt2": _gpt2(320, 64, 3, 4),
    "tiny-llava": _llava(_dense("LlamaForCausalLM", TINY), (28, 7, 32, 3, 2, 64)),
}


def random_checkpoint(
    folder: Path,
    config: dict[str, Any],
    *,
    seed: int = 0,
    dtype: str = "float32",
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a checkpoint.

    Args:
        folder: Made when it is not there.
        config: As in ``config.json``; ``dtype`` and the special token ids are filled in.
        seed: The same seed gives the same bytes.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        on_progress: Called with bytes done and bytes in all.

    Raises:
        ModelLoadError: ``config`` is not one that Quire can load.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ids = {"bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT}
    (folder / "config.json").write_text(json.dumps({**ids, **config, "dtype": dtype}, indent=2))
    if "vision_config" in config:
        _write_preprocessor(folder, config["vision_config"]["image_size"])
    model = read_model_config(folder)
    shapes = WeightMap(model, family_names(model)).shapes()
    if model.vision is not None:
        shapes |= vision_weights(model.vision, model.hidden_size).shapes()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + ELEMENT_BYTES[dtype] * int(np.prod(shape))
        header[name] = {
            "dtype": FORMAT_DTYPES[dtype],
            "shape": shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(seed)
    done = 0
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            for values in _values(generator, name, shape):
                done += file.write(_encode(values, dtype))
                if on_progress is not None:
                    on_progress(done, end)
    _write_tokenizer(folder, reads_pictures=model.vision is not None)


def _values(
    generator: np.random.Generator, name: str, shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """Yield values in chunks: norms near 1, the rest scaled so that activations stay near 1."""
    count, scale = int(np.prod(shape)), np.float32(shape[-1] ** -0.5)
    is_norm = len(shape) == 1 and name.endswith("weight")
    for begin in range(0, count, CHUNK):
        values = generator.standard_normal(min(CHUNK, count - begin), dtype=np.float32)
        yield values * np.float32(0.1) + np.float32(1) if is_norm else values * scale


def _encode(values: np.ndarray, dtype: str) -> bytes:
    if dtype != "bfloat16":
        return values.astype(dtype).tobytes()
    bits = values.view(np.uint32)
    # Round to nearest, ties to even.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def _write_preprocessor(folder: Path, edge: int) -> None:
    """Write CLIP's way to prepare pictures."""
    settings = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": edge},
        "crop_size": {"height": edge, "width": edge},
        "resample": 3,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2))


def _write_tokenizer(folder: Path, *, reads_pictures: bool) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL_TOKENS, *[PICTURE_TOKEN] * reads_pictures])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[0],
        "chat_template": PICTURE_TEMPLATE if reads_pictures else CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


@click.command()
@click.argument("preset", type=click.Choice(list(PRESETS)))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice(list(FORMAT_DTYPES)), default="bfloat16")
@click.option("--seed", type=int, default=0)
def main(preset: str, folder: Path, dtype: str, seed: int) -> None:
    """Write a random checkpoint with the shapes of PRESET to FOLDER."""
    from rich.progress import Progress

    with Progress() as progress:
        task = progress.add_task(preset, total=None)
        random_checkpoint(
            folder,
            PRESETS[preset],
            seed=seed,
            dtype=dtype,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


if __name__ == "__main__":
    main()
