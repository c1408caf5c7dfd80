"""Write a checkpoint of the training as a folder that Quire and transformers load.

Usage: ``python -m tools.quire_tiny_vision.export --work DIR --out quire/assets/quire-tiny-vision``.
The model card is not written here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from tools.quire_tiny.export import generation_config, tokenizer_config, write_json
from tools.quire_tiny_vision.model import EDGE, IMAGE_ID, IMAGE_TOKEN, load_tokenizer
from tools.quire_tiny_vision.train import Trained

# Pictures stand before the text, wherever a message has them.
CHAT_TEMPLATE = r"""{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] if part['type'] == 'image' -%}
{{- '<image>' -}}
{%- endfor -%}
{%- for part in message['content'] if part['type'] == 'text' -%}
{{- part['text'] -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
"""


def preprocessor_config() -> dict:
    """Return ``preprocessor_config.json``: made square by Pillow, values of -1 to 1."""
    return {
        "image_processor_type": "SiglipImageProcessor",
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"height": EDGE, "width": EDGE},
    }


def export(work: Path, out: Path) -> None:
    """Write the folder from ``work/vision.pt``."""
    trained = Trained()
    trained.load_state_dict(torch.load(work / "vision.pt")["model"])
    trained.llava.to(torch.bfloat16).save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    write_json(out / "generation_config.json", {**generation_config(), "max_new_tokens": 64})
    settings = tokenizer_config()
    settings["added_tokens_decoder"][str(IMAGE_ID)]["content"] = IMAGE_TOKEN
    write_json(out / "tokenizer_config.json", settings)
    special = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    write_json(out / "special_tokens_map.json", special)
    write_json(out / "tokenizer.json", json.loads(load_tokenizer().to_str()), indent=None)
    write_json(out / "preprocessor_config.json", preprocessor_config())
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    export(args.work, args.out)


if __name__ == "__main__":
    main()
