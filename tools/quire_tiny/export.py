"""Write a trained checkpoint as a Hugging Face folder: weights, configuration, tokenizer, template.

Usage: ``python -m tools.quire_tiny.export --model main --work DIR --out quire/assets/quire-tiny``.
The model card and the evaluation data are not written here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tools.quire_tiny.model import SHAPES, Llama, ModelShape
from tools.quire_tiny.tokenizer import ENDOFTEXT_ID, IM_END_ID, PAD_ID, TAGS, special_tokens

MAX_LENGTH = 2048
# No default system prompt: without a system message none is written. Content may be a string or
# a list of parts, of which the text parts are written. Tools and calls are written as Hermes does.
CHAT_TEMPLATE = r"""{%- if tools -%}
{{- '<|im_start|>system\n' -}}
{%- if messages[0]['role'] == 'system' and messages[0]['content'] is string -%}
{{- messages[0]['content'] + '\n' -}}
{%- endif -%}
{{- '<tools>\n' -}}
{%- for tool in tools -%}
{{- tool['function'] | tojson + '\n' -}}
{%- endfor -%}
{{- '</tools><|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (tools and loop.first and message['role'] == 'system') -%}
{%- set response = message['role'] == 'tool' -%}
{{- '<|im_start|>' + ('user' if response else message['role']) + '\n' -}}
{{- '<tool_response>\n' if response -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] or [] -%}
{%- if part['type'] == 'text' -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '\n</tool_response>' if response -}}
{%- for call in message['tool_calls'] or [] -%}
{{- '\n' if message['content'] or not loop.first -}}
{{- '<tool_call>\n{"name": "' + call['function']['name'] + '", "arguments": ' -}}
{{- call['function']['arguments'] | tojson + '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
"""


def model_config(shape: ModelShape) -> dict:
    """Return ``config.json`` of ``LlamaForCausalLM``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": ENDOFTEXT_ID,
        "eos_token_id": [IM_END_ID, ENDOFTEXT_ID],
        "pad_token_id": PAD_ID,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "mlp_bias": False,
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def generation_config() -> dict:
    """Return ``generation_config.json``: greedy, since the answers are facts."""
    return {
        "bos_token_id": ENDOFTEXT_ID,
        "do_sample": False,
        "eos_token_id": [IM_END_ID, ENDOFTEXT_ID],
        "max_new_tokens": 256,
        "pad_token_id": PAD_ID,
        "temperature": 0.0,
    }


def tokenizer_config() -> dict:
    """Return ``tokenizer_config.json``."""
    decoder = {
        str(i): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token not in TAGS,
        }
        for i, token in enumerate(special_tokens())
    }
    return {
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": MAX_LENGTH,
        "pad_token": "<|pad|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def write_json(path: Path, value: object, indent: int | None = 2) -> None:
    """Write JSON with a final newline."""
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def export(name: str, work: Path, out: Path) -> None:
    """Write the folder of the model ``name`` from ``work/<name>.pt``."""
    out.mkdir(parents=True, exist_ok=True)
    state = torch.load(work / f"{name}.pt", map_location="cpu")["model"]
    tensors = {f"model.{k}": v.bfloat16().contiguous() for k, v in state.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    write_json(out / "config.json", model_config(SHAPES[name]))
    write_json(out / "generation_config.json", generation_config())
    write_json(out / "tokenizer_config.json", tokenizer_config())
    special = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    write_json(out / "special_tokens_map.json", special)
    tokenizer = json.loads((work / "tokenizer.json").read_text(encoding="utf-8"))
    write_json(out / "tokenizer.json", tokenizer, indent=None)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def load(folder: Path) -> Llama:
    """Read an exported folder back into the training model, in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = ModelShape(**{k: config[k] for k in ModelShape.__dataclass_fields__})
    model = Llama(shape)
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in tensors.items()})
    return model.eval()


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SHAPES), default="main")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    export(args.model, args.work, args.out)


if __name__ == "__main__":
    main()
