"""Write a bf16 GGUF file from a Hugging Face checkpoint, so that llama.cpp runs the same weights.

Runs in the peer's environment (packages ``gguf`` and ``numpy``); Llama and Qwen3 shapes only. The
file has no vocabulary: the comparison feeds token ids.
"""

from __future__ import annotations

import argparse
import json
import mmap
from pathlib import Path

import gguf
import numpy as np

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a checkpoint tensor."""
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{LAYER_NAMES[stem]}.{kind}"


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Map name to the 16-bit patterns of every bf16 tensor, without copying."""
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(mapped[:8], "little")
        for name, entry in json.loads(mapped[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "BF16":
                raise SystemExit(f"[gguf] tensors must be BF16; {name} is {entry['dtype']}.")
            begin, end = entry["data_offsets"]
            flat = np.frombuffer(
                mapped, np.uint16, count=(end - begin) // 2, offset=8 + size + begin
            )
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def interleave_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorder each head's rows for llama.cpp's Llama graphs, which rotate neighbouring pairs."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def convert(folder: Path, path: Path) -> None:
    """Write ``path`` from the checkpoint in ``folder``."""
    config = json.loads((folder / "config.json").read_text())
    arch = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}[config["architectures"][0]]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for name, bits in read_tensors(folder).items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            bits = interleave_halves(bits, heads if "q_proj" in name else kv_heads)
        if bits.ndim == 1:
            values = (bits.astype(np.uint32) << 16).view(np.float32)
            writer.add_tensor(gguf_name(name), values)
        else:
            rows = np.ascontiguousarray(bits).view(np.uint8)
            writer.add_tensor(gguf_name(name), rows, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    convert(arguments.checkpoint, arguments.output)
