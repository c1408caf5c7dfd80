"""Draft models with another vocabulary, made of one that there is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.torch import save_file

#: Ids that keep their place: special and added tokens.
NUM_ADDED = 16


def retokenized(source: Path, folder: Path, num_dropped: int, seed: int = 0) -> Path:
    """Copy a byte-level model with shuffled ids, and without the last merges of its tokenizer.

    Args:
        source: Its embedding is its head; all ids but the first 16 are of its merges' vocabulary.
        folder: To write.
        num_dropped: Merges that are left out, with the tokens that they make.
        seed: Of the order.
    """
    shutil.copytree(source, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    model = tokenizer["model"]
    merges = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    kept = len(merges) - num_dropped
    dropped = {"".join(merge) for merge in merges[kept:]}
    dropped -= {"".join(merge) for merge in merges[:kept]}
    model["merges"] = merges[:kept]
    ids = [i for token, i in model["vocab"].items() if token not in dropped and i >= NUM_ADDED]
    order = [*range(NUM_ADDED), *np.random.default_rng(seed).permutation(sorted(ids)).tolist()]
    places = {old: new for new, old in enumerate(order)}
    model["vocab"] = {t: places[i] for t, i in model["vocab"].items() if i in places}
    path.write_text(json.dumps(tokenizer), "utf-8")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["vocab_size"] = len(order)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    name = "model.embed_tokens.weight"
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = list(file.keys())
        tensors = {key: file.get_tensor(key) for key in names}
    assert config["tie_word_embeddings"] and "lm_head.weight" not in tensors, source
    tensors[name] = tensors[name][order].contiguous()
    save_file(tensors, folder / "model.safetensors")
    return folder
