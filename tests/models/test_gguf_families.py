"""GGUF files of every family against llama.cpp: its logits of our files are transformers', and what
its converter makes of a folder is what ours does.

llama.cpp runs in an environment of its own, as in ``tests/integration/test_llama_cpp.py``; its
converter, which runs here, is in its sources, which ``scripts/install_test_programs`` keeps, or in
the folder that ``QUIRE_TEST_LLAMA_SOURCE`` names.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import traceback
from dataclasses import replace

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import dequantize
from quire.checkpoints.gguf.gguf_writer import TensorPlan, write_gguf
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.gguf.gguf_export import GgufExport
from quire.quantization.quantization_plan import QuantizationPlan
from tests.models.gguf_settings import SETTINGS
from tests.models.llama_converter import converter_classes, write_with

#: llama.cpp lets all positions of these architectures see all others, so nothing may be cut off.
WIDE = {"sliding_window": 256}
#: Its converter takes these for granted.
FALCON = {"ffn_hidden_size": 256, "max_position_embeddings": 2048}
UNGROUPED = {"n_group": 1, "topk_group": 1}
CHANGES = {
    "mistral": WIDE, "qwen2": WIDE, "ministral": WIDE, "starcoder2": WIDE, "phi3-window": WIDE,
    "phi": {"intermediate_size": 256, "num_key_value_heads": 4}, "glm": {"rms_norm_eps": 1e-5},
    "falcon-7b": {**FALCON, "num_kv_heads": 1}, "falcon-40b": FALCON,
    # A group counts as its two best there, and models of 27 layers alone make queries of states.
    "deepseek-v2": UNGROUPED, "deepseek-v2-lite": {**UNGROUPED, "num_hidden_layers": 27},
}  # fmt: skip
#: Fields that it looks for and transformers of today leave out.
OLD_FIELDS = {
    "gpt2": {"n_ctx": 128},
    "gpt-neox": {"rotary_pct": 0.25},
    "cohere2": {"rotary_pct": 1.0},
    "deepseek-v2": {"scoring_func": "softmax"},
    "deepseek-v2-lite": {"scoring_func": "softmax"},
    "deepseek-v3": {"scoring_func": "sigmoid"},
    "glm4-moe": {"num_nextn_predict_layers": 0},
}
OLD_FIELDS["gpt-neox-in-turn"] = OLD_FIELDS["gpt-neox"]
#: It has no class of these, or takes a field for granted.
NOT_CONVERTED = ("ministral", "ministral3")
#: Metadata that it writes otherwise: the width of the model for the context.
CONVERTERS_OWN = ("chatglm.context_length",)
MODELS = {name: (family, {**s, **CHANGES.get(name, {})}) for name, (family, s) in SETTINGS.items()}
#: Prompt, and tokens after it that are computed one at a time.
TOKENS = np.random.default_rng(3).integers(3, 211, 48).tolist()
NUM_PROMPT = 40
#: How far its logits may be from float32's, relative to the largest. Its GELU is a table of float16
#: values of the tanh formula, which families that have the exact function get, too.
GELU = ("gemma", "gemma3", "phi", "gpt", "falcon", "starcoder2")
LOGITS = """
import json, sys
import numpy as np
from llama_cpp import Llama
paths, tokens, num_prompt, out = json.loads(sys.stdin.read())
found = {}
for path in paths:
    model = Llama(path, n_ctx=256, n_batch=256, n_threads=1, n_threads_batch=1, n_gpu_layers=0,
                  logits_all=True, type_k=0, type_v=0, flash_attn=False, verbose=False)
    model.eval(tokens[:num_prompt])
    for token in tokens[num_prompt:]:
        model.eval([token])
    found[path] = np.array(model.scores[: len(tokens)])
    model.close()
np.savez(out, **found)
"""


@pytest.fixture(scope="module")
def reference():
    return create_backend("reference", threads=1)


@pytest.fixture(scope="module")
def folder(saved_oracle, tmp_path_factory):
    """Return a function that gives (model, folder) of an entry of MODELS, made once, to write to.

    The model is for reading: other files' tests have the same one.
    """
    made = {}

    def get(name):
        if name not in made:
            model, saved = saved_oracle(*MODELS[name])
            folder = tmp_path_factory.mktemp(name)
            shutil.copytree(saved, folder, dirs_exist_ok=True)
            made[name] = model, folder
        return made[name]

    return get


@pytest.fixture(scope="module")
def ours(folder):
    """Return a function that gives our file of an entry of MODELS, made once, with no tokenizer."""

    def get(name):
        path = folder(name)[1] / "ours.gguf"
        if not path.exists():
            exported = GgufExport(folder(name)[1], "F32")
            write_gguf(path, exported.metadata | {"tokenizer.ggml.model": "none"}, exported.tensors)
        return path

    return get


@pytest.fixture(scope="module")
def llama_logits(ours, peer_python, tmp_path_factory):
    """Return llama.cpp's logits of all our files, in one process."""
    paths = {name: str(ours(name)) for name in MODELS}
    out = tmp_path_factory.mktemp("llama") / "logits.npz"
    done = subprocess.run(
        [peer_python, "-c", LOGITS],
        input=json.dumps([list(paths.values()), TOKENS, NUM_PROMPT, str(out)]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(out)
    return {name: found[path] for name, path in paths.items()}


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_computes_what_transformers_does(name, folder, llama_logits, oracle_logits):
    want = oracle_logits(folder(name)[0], TOKENS)
    difference = np.abs(llama_logits[name] - want).max() / np.abs(want).max()
    assert difference < (1e-2 if name.startswith(GELU) else 1e-5)


@pytest.fixture(scope="module")
def converted(folder, ours, llama_source):
    """Have llama.cpp's converter make ``theirs.gguf`` of all folders."""
    names = [name for name in MODELS if name not in NOT_CONVERTED]
    for name in names:
        path = folder(name)[1]
        assert ours(name).exists()
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | OLD_FIELDS.get(name, {})))
        # Of which it looks at the number of tokens.
        tokens = {str(token): token for token in range(config["vocab_size"])}
        tokenizer = {"model": {"vocab": tokens}, "added_tokens": []}
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with converter_classes(llama_source) as class_of:
        for name in names:
            path = folder(name)[1]
            converter = class_of(path)
            converter.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
            # transformers' own reading of a config.json drops some fields.
            config = json.loads((path / "config.json").read_text())
            hparams = config | converter.load_hparams(path, False)
            try:
                write_with(converter, path, path / "theirs.gguf", hparams=hparams)
            except Exception:
                (path / "theirs.error").write_text(traceback.format_exc())
    return folder


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NOT_CONVERTED])
def test_its_converter_writes_what_ours_does(name, converted, ours):
    """Every tensor, bit for bit, and all its metadata; the file is the same model to us."""
    path = converted(name)[1]
    error = path / "theirs.error"
    assert not error.exists(), error.read_text()
    mine, theirs = GgufFile(ours(name)), GgufFile(path / "theirs.gguf")
    assert set(mine.tensors) == set(theirs.tensors)
    for tensor, place in theirs.tensors.items():
        assert mine.tensors[tensor].shape == place.shape, tensor
        assert bytes(mine.data(tensor)) == bytes(theirs.data(tensor)), tensor
    prefix = f"{theirs.metadata['general.architecture']}."
    for key, value in theirs.metadata.items():
        if key.startswith(prefix) and key not in CONVERTERS_OWN:
            assert mine.metadata.get(key, value) == value, key
    own = {}
    if not theirs.metadata.get(f"{prefix}attention.sliding_window"):
        # Windows that llama.cpp does not keep to.
        own |= {"sliding_window": None, "layer_windows": ()}
    if name == "gemma3":  # It is six layers for every model there.
        own["layer_windows"] = ()
    if prefix == "chatglm.":
        own["max_position_embeddings"] = 256
    read = [read_model_config(file.path) for file in (mine, theirs)]
    assert replace(read[1], **own) == replace(read[0], **own)


@pytest.mark.parametrize("name", ["gemma3", "phi3", "gpt-neox", "falcon-40b", "glm4", "cohere"])
def test_quantized_files_hold_the_quantized_values(
    name, folder, create_driver, reference, backend, tmp_path
):
    """Fused matrices and those in another order, too: the same as a file of the floats they are."""
    exported = GgufExport(folder(name)[1], "Q8_0")
    path, plain = tmp_path / "model.gguf", tmp_path / "plain.gguf"
    write_gguf(path, exported.metadata, exported.tensors)
    file, plans = GgufFile(path), []
    for tensor, place in file.tensors.items():
        values = dequantize(place.layout.name, np.frombuffer(file.data(tensor), np.uint8)[None])
        chunks = [values.tobytes()].__iter__
        plans.append(TensorPlan(tensor, LAYOUTS["F32"], place.shape, chunks))
    write_gguf(plain, file.metadata, plans)
    want = create_driver(path, reference).step([np.array(TOKENS)])
    assert np.array_equal(create_driver(plain, reference).step([np.array(TOKENS)]), want)
    plan = QuantizationPlan(exact_activations=True)
    got = create_driver(path, backend, plan=plan).step([np.array(TOKENS)])
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


def test_fused_matrix_in_three(folder, ours, create_driver, reference, tmp_path):
    """Older files of Phi-3 have queries, keys and values apart."""
    file, plans = GgufFile(ours("phi3")), []
    config = read_model_config(file.path)
    sizes = [n * config.head_dim for n in (config.num_heads, *[config.num_kv_heads] * 2)]
    for name, tensor in file.tensors.items():
        data, parts = bytes(file.data(name)), {name: tensor.shape[0]}
        if ".attn_qkv." in name:
            parts = {name.replace("qkv", p): n for p, n in zip("qkv", sizes, strict=True)}
        row = len(data) // tensor.shape[0]
        for part, rows in parts.items():
            chunks, data = [data[: rows * row]], data[rows * row :]
            shape = (rows, *tensor.shape[1:])
            plans.append(TensorPlan(part, tensor.layout, shape, chunks.__iter__))
    path = tmp_path / "three.gguf"
    write_gguf(path, file.metadata, plans)
    want = create_driver(file.path, reference).step([np.array(TOKENS)])
    assert np.array_equal(create_driver(path, reference).step([np.array(TOKENS)]), want)
