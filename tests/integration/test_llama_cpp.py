"""Files of ``quire convert`` in llama.cpp: the same tokens for text, the same continuation.

Runs with the environment of ``scripts/install_test_programs``, or the Python that
``QUIRE_TEST_LLAMA_PYTHON`` names.
"""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

from benchmarks import quality
from benchmarks.peers.setup import QUANTIZE
from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS, EMBEDDED
from quire.cli.main import run
from quire.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS
from tests.first_layers import first_layers
from tests.sizes import sized
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.record_pre_tokenizers import RECORD, peer_ids

TEXTS = [
    "Hello, world! It's 12345 o'clock.",
    "  two  spaces\n\n\tand tabs   ",
    "Füße, 東京, 🦙 and ½",
    "<|im_start|>user\nWhat is a quire?<|im_end|>\n<|im_start|>assistant\n",
]
#: Each script in a fork of one process that has imported llama.cpp's binding, half a core's second.
RUNNER = """
import json, os, sys
import numpy, llama_cpp
for line in sys.stdin:
    script, arguments, output = json.loads(line)
    pid = os.fork()
    if not pid:
        place = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(place, 1), os.dup2(place, 2)
        sys.argv[1:] = arguments
        exec(compile(script, "script", "exec"), {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
GENERATE = """
import json, sys
from llama_cpp import Llama
path, texts, num_tokens = json.loads(sys.argv[1])
model = Llama(path, n_ctx=256, n_threads=1, n_threads_batch=1, n_gpu_layers=0, verbose=False)
result = []
for text in texts:
    tokens = model.tokenize(text.encode(), add_bos=False, special=True)
    model.reset()
    output = []
    for token in model.generate(tokens, top_k=1, temp=0.0, repeat_penalty=1.0):
        output.append(token)
        if len(output) == num_tokens:
            break
    result.append([tokens, output])
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def peer(peer_python, tmp_path_factory):
    """Return a function that runs a script with llama.cpp, and gives what it writes."""
    output = tmp_path_factory.mktemp("peer") / "output"
    with subprocess.Popen(
        [peer_python, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def run_script(script, *arguments):
            words = [str(argument) for argument in arguments]
            print(json.dumps([script, words, str(output)]), file=process.stdin, flush=True)
            code, text = process.stdout.readline().strip(), output.read_text(errors="replace")
            assert code == "0", (code, text[-2000:])
            return text

        yield run_script
        process.stdin.close()


@pytest.fixture(scope="module")
def llama_cpp(peer):
    """Return a function that gives llama.cpp's (tokens, greedy continuation) of each text."""

    def ask(path, num_tokens):
        text = peer(GENERATE, json.dumps([str(path), TEXTS, num_tokens]))
        return json.loads(text.splitlines()[-1])

    return ask


@pytest.fixture
def peer_logits(peer, tmp_path):
    """Return a function for llama.cpp's, by one thread: its others would spin while they wait."""

    def logits(path, windows):
        tokens, out = tmp_path / "tokens.npy", tmp_path / "logits.npy"
        np.save(tokens, windows.astype(np.int32))
        peer(quality.PEER.read_text(), path, tokens, out, 1)
        return np.load(out)

    return logits


def ours(path, small, num_tokens):
    with LLM(str(path), device="cpu", **small) as model:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        encode = model.get_tokenizer().encode
        ids = [encode(text, add_special_tokens=False) for text in TEXTS]
        outputs = model.generate(ids, params, use_tqdm=False)
        return [[i, o.outputs[0].token_ids] for i, o in zip(ids, outputs, strict=True)]


@pytest.fixture
def tiny():
    """Return the folder of quire-tiny."""
    return ASSETS / EMBEDDED


@pytest.mark.parametrize("type_name", ["f16", "q8_0", "q4_0", "q4_1"])
def test_quire_tiny_in_llama_cpp(type_name, llama_cpp, tiny, small, device, tmp_path):
    path = tmp_path / "tiny.gguf"
    assert run(["convert", str(tiny), str(path), "--type", type_name]) == 0
    theirs = llama_cpp(path, 24)
    mine = ours(path, small, 24)
    assert [tokens for tokens, _ in mine] == [tokens for tokens, _ in theirs]
    if type_name == "f16":
        assert mine == theirs


#: Latents, a picture encoder, dense layers among experts: ``quire convert`` refuses to write these.
UNWRITTEN = {"tiny-deepseek", "tiny-llava", "tiny-qwen2-moe"}
WRITTEN = [name for name in PRESETS if name.startswith("tiny-") and name not in UNWRITTEN]


@pytest.mark.parametrize("preset", WRITTEN)
def test_random_checkpoints_in_llama_cpp(preset, llama_cpp, small, device, tmp_path):
    """Random weights spread logits widely enough that a wrong tensor changes the first tokens."""
    folder, path = tmp_path / preset, tmp_path / f"{preset}.gguf"
    random_checkpoint(folder, PRESETS[preset])
    assert run(["convert", str(folder), str(path), "--type", "f32"]) == 0
    theirs = llama_cpp(path, 6)
    mine = ours(path, small, 6)
    assert [t for t, _ in mine] == [t for t, _ in theirs]
    assert [o[:3] for _, o in mine] == [o[:3] for _, o in theirs]


def test_recorded_ids_are_llama_cpps(peer_python):
    """What ``tests/text/test_pre_tokenizers.py`` compares with is what llama.cpp gives today."""
    data, names = json.loads(RECORD.read_text()), list(PRE_TOKENIZERS)
    found = peer_ids(peer_python, names, data["merges"])
    for index, case in enumerate(data["cases"]):
        recorded = {name: ids for same, ids in case["ids"].items() for name in same.split()}
        assert {name: found[i][index] for i, name in enumerate(names)} == recorded


def test_quality_rises_with_the_bits_and_is_llama_cpps(peer, peer_logits, tiny, device, tmp_path):
    """Files of llama.cpp's quantizer in their order, none worse here than there.

    By divergence from float32: perplexities of five and six bits differ by less than their noise.
    """
    folder, whole = tmp_path / "model", tmp_path / "whole.gguf"
    first_layers(tiny, folder, sized(2, 6))
    assert run(["convert", str(folder), str(whole), "--type", "f32"]) == 0
    windows = quality.tiny_windows(folder)[: sized(1, 2), : sized(256, 512)]
    exact = quality.quire_logits(folder, windows, {})
    divergences = []
    for kind in ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16"):
        path = tmp_path / f"{kind}.gguf"
        peer(QUANTIZE, whole, path, kind, 1)
        mine = quality.compare(quality.quire_logits(path, windows, {}), exact, windows)["kl"]
        logits = peer_logits(path, windows)[:, :, : exact.shape[2]]
        theirs = quality.compare(logits, exact, windows)["kl"]
        assert mine <= 1.05 * theirs + 1e-5, (kind, mine, theirs)
        divergences.append(mine)
    assert divergences == sorted(divergences, reverse=True)


@pytest.fixture(scope="module")
def few_layers(tmp_path_factory):
    """Return a model, its inputs' importance, windows of text, and their logits by float32.

    Searching for the nearest of a table takes the time; each tensor's type is that of its name,
    so that one layer has all of a file's types, and its feed-forward reads what others rounded.
    """
    root = tmp_path_factory.mktemp("few")
    folder, matrix = root / "model", root / "matrix.gguf"
    first_layers(ASSETS / EMBEDDED, folder, sized(1, 6))
    assert run(["imatrix", str(folder), str(matrix), "--samples", sized("2", "8")]) == 0
    windows = quality.tiny_windows(folder)[: sized(1, 2), : sized(256, 512)]
    return folder, matrix, windows, quality.quire_logits(folder, windows, {})


@pytest.mark.parametrize(
    ("kind", "divergence"),
    [
        ("iq3_xxs", sized(0.15, 0.05)),  # of one layer's logits more is lost
        ("iq2_xs", sized(0.25, 0.12)),
        ("iq1_m", sized(0.5, 0.4)),
        ("iq1_s", sized(0.65, 0.8)),
        ("mxfp4_moe", sized(0.1, 0.04)),
    ],
)
def test_files_of_few_bits_are_the_same_to_both(
    kind, divergence, peer_logits, few_layers, device, tmp_path
):
    """Both programs' logits: far from float32, near to each other but for 8-bit activations."""
    model, matrix, windows, exact = few_layers
    path = tmp_path / "few.gguf"
    command = ["convert", str(model), str(path), "--type", kind, "--imatrix", str(matrix)]
    assert run([*command, "--pure"] if kind == "mxfp4_moe" else command) == 0
    mine = quality.quire_logits(path, windows, {})
    theirs = peer_logits(path, windows)[:, :, : exact.shape[2]]
    found = [quality.compare(logits, exact, windows) for logits in (mine, theirs)]
    assert found[0]["kl"] == pytest.approx(found[1]["kl"], rel=0.1)
    assert found[0]["perplexity"] == pytest.approx(found[1]["perplexity"], rel=0.01)
    assert found[0]["kl"] < divergence
    assert quality.compare(mine, theirs, windows)["kl"] < 0.2 * found[0]["kl"]
