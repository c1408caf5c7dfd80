"""The tiny random Llama that every fixture quantizes, and how a fixture is written.

It does not know any quantization library: the ``make_*`` modules next to it do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures" / "quantized"
#: One token for each; the model's whole vocabulary.
SYMBOLS = ["<pad>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz .,"]
#: Enough for formats whose blocks hold at most 64 values.
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
#: For blocks of 128 x 128, some of them cut off.
PAST_BLOCK = SMALL | {"intermediate_size": 160}
#: For groups of 128; its intermediate size is no multiple of them.
WIDE = {"hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 2}
#: Which dequantized weights are kept whole; all have a digest.
KEPT = re.compile(r"\.k_proj\.|\.experts\.down_proj\b")


def tiny_llama(
    dtype: torch.dtype, sizes: Mapping[str, int] = SMALL, layers: int = 1, seed: int = 0
) -> LlamaForCausalLM:
    """Make a Llama whose rows and columns differ in size by about 4, with a few outliers."""
    heads = sizes["num_attention_heads"]
    config = LlamaConfig(
        **sizes,
        vocab_size=len(SYMBOLS),
        num_hidden_layers=layers,
        num_key_value_heads=heads // 2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype=dtype,
    )
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.copy_(1 + 0.1 * torch.randn(weight.shape, generator=generator))
                continue
            values = torch.randn(weight.shape, generator=generator) * 0.06
            for shape in ((weight.shape[0], 1), (1, weight.shape[1])):
                values *= torch.exp(0.5 * torch.randn(shape, generator=generator))
            # Off centre by a row's own amount, so that asymmetric zero points differ.
            values += 0.04 * torch.randn((weight.shape[0], 1), generator=generator)
            outliers = torch.rand(weight.shape, generator=generator) < 0.002
            weight.copy_(torch.where(outliers, values * 6, values))
    return model.to(dtype)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of single characters whose ids all fit the tiny model."""
    backend = Tokenizer(models.WordLevel({s: i for i, s in enumerate(SYMBOLS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def sample_texts(count: int = 16, length: int = 64, seed: int = 0) -> list[str]:
    """Return calibration texts of random characters."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, len(SYMBOLS), (count, length), generator=generator)
    return ["".join(SYMBOLS[i] for i in row) for row in ids.tolist()]


@contextmanager
def unquantized_folder(dtype: torch.dtype, **choices: Any) -> Iterator[Path]:
    """Yield a folder with the tiny model, its tokenizer and ``texts.json``."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tiny-llama"
        tiny_llama(dtype, **choices).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        (folder / "texts.json").write_text(json.dumps([{"text": t} for t in sample_texts()]))
        yield folder


def is_linear(name: str) -> bool:
    """Tell whether a module of the tiny Llama is one that libraries quantize."""
    return name.endswith("_proj")


def write_fixture(name: str, saved: Path, dequantized: Mapping[str, torch.Tensor]) -> None:
    """Copy a saved checkpoint to the fixtures, with what its weights stand for.

    Args:
        name: Of the folder under ``tests/fixtures/quantized``; replaced when it is there.
        saved: The library's output; ``config.json`` and ``model.safetensors`` are taken unchanged.
        dequantized: Weights by their names in an unquantized checkpoint, shaped as there. All go
            into ``dequantized.json`` with dtype, shape and SHA-256 of the bytes; those that
            :data:`KEPT` matches go into ``dequantized.safetensors`` whole.
    """
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in ("config.json", "model.safetensors", "quantize_config.json"):
        if (saved / file).exists():
            shutil.copyfile(saved / file, folder / file)
    tensors = {key: value.detach().contiguous() for key, value in sorted(dequantized.items())}
    facts = {key: _facts(value) for key, value in tensors.items()}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(fact)}" for key, fact in facts.items())
    (folder / "dequantized.json").write_text(f"{{\n{lines}\n}}\n")
    kept = {key: value for key, value in tensors.items() if KEPT.search(key)}
    assert kept, f"{name}: no weight is kept whole; got {list(tensors)}"
    save_file(kept, folder / "dequantized.safetensors")
    describe(folder)


def _facts(tensor: torch.Tensor) -> dict[str, Any]:
    data = tensor.view(torch.uint8).numpy().tobytes()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def describe(folder: Path) -> None:
    """Print the tensors of a fixture's first linear and its ``quantization_config``."""
    config = json.loads((folder / "config.json").read_text())
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"== {folder.name}: {size} bytes, dtype {config.get('dtype', config.get('torch_dtype'))}")
    print(json.dumps(config.get("quantization_config")))
    for key, value in load_file(folder / "model.safetensors").items():
        if "k_proj" in key or "down_proj" in key or "experts" in key:
            print("  ", key, tuple(value.shape), value.dtype)


def run(cases: Mapping[str, Callable[[str], None]]) -> None:
    """Make the fixtures named on the command line, or all of them, in the order of ``cases``."""
    parser = argparse.ArgumentParser(description="Write checkpoints under tests/fixtures.")
    parser.add_argument("names", nargs="*", choices=[*cases, []], metavar="NAME")
    names = parser.parse_args().names or list(cases)
    for name in names:
        torch.manual_seed(0)
        cases[name](name)
