"""Encoders through GGUF files: ids, vectors and classes of the folder, and llama.cpp's vectors."""

from __future__ import annotations

import json
import subprocess
from array import array

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from quire import LLM
from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.cli.main import cli
from quire.core.errors import UnsupportedArchitectureError
from quire.models.gguf.gguf_export import GgufExport
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.encoders.conftest import TEXTS
from tests.lazy_packages import lazy_package
from tests.models.llama_converter import converter_classes, write_with

transformers = lazy_package("transformers")

NAMES = ["bert", "roberta", "xlm-roberta", "bert-classes", "xlm-roberta-score", "roberta-classes"]
#: Of llama.cpp, for ids of texts and their pooled vectors.
VECTORS = """
import json, sys
from llama_cpp import Llama
paths, texts = json.loads(sys.stdin.read())
found = {}
for path in paths:
    model = Llama(path, embedding=True, n_ctx=128, n_threads=1, n_gpu_layers=0, verbose=False)
    ids = [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]
    found[path] = [ids, [model.embed(text, normalize=True) for text in texts]]
    model.close()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def converted(encoder):
    """Return a function that gives (oracle, file) of an encoder, made once."""

    def get(name):
        oracle = encoder(name)
        path = oracle.folder / "model.gguf"
        if not path.exists():
            done = CliRunner().invoke(cli, ["convert", str(oracle.folder), str(path), "--type=f32"])
            assert done.exit_code == 0, done.output
        return oracle, path

    return get


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_the_folders(name, converted):
    oracle, path = converted(name)
    theirs, ours = load_tokenizer(oracle.folder), load_tokenizer(path)
    for text in [*TEXTS, "A Cat sat, Ünd é 東京!", "a[SEP]cat", ""]:
        assert ours.encode(text) == theirs.encode(text), text
    assert ours.encode_pair(*TEXTS[:2]) == theirs.encode_pair(*TEXTS[:2])


@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_classes_are_the_folders(name, converted):
    oracle, path = converted(name)
    with LLM(oracle.folder) as whole, LLM(path) as llm:
        if name in ("bert", "roberta", "xlm-roberta"):
            for kind in ("cls", "mean"):
                got, want = (
                    [o.outputs.embedding for o in m.embed(TEXTS, pooling=kind, use_tqdm=False)]
                    for m in (llm, whole)
                )
                assert got == want
        else:
            got, want = (m.classify(TEXTS, use_tqdm=False) for m in (llm, whole))
            assert [o.outputs.probs for o in got] == [o.outputs.probs for o in want]
            if name.endswith("score"):
                got, want = (m.score(TEXTS[0], TEXTS) for m in (llm, whole))
                assert [o.outputs.score for o in got] == [o.outputs.score for o in want]


@pytest.fixture(scope="module")
def theirs(converted, peer_python):
    """Return llama.cpp's ids and vectors of all texts, by the encoder's name."""
    paths = {name: str(converted(name)[1]) for name in ("bert", "xlm-roberta")}
    done = subprocess.run(
        [peer_python, "-c", VECTORS],
        input=json.dumps([list(paths.values()), TEXTS]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[path] for name, path in paths.items()}


@pytest.mark.parametrize("name", ["bert", "xlm-roberta"])
def test_llama_cpp_makes_the_same_vectors(name, converted, theirs):
    """Its GELU is a table of float16 values of another formula."""
    oracle, _ = converted(name)
    ids, vectors = theirs[name]
    assert ids == [load_tokenizer(oracle.folder).encode(text) for text in TEXTS]
    for text, vector in zip(TEXTS, vectors, strict=True):
        want = oracle.vector(text, "cls")
        assert np.abs(np.array(vector) - want).max() < 1e-2 * np.abs(want).max()


def test_a_file_of_its_converter(converted, llama_source, tmp_path):
    """The same tensors and tokens; but ids that the tokenizer has no token for are named apart."""
    oracle, path = converted("bert")
    theirs = tmp_path / "theirs.gguf"
    with converter_classes(llama_source) as class_of:
        converter = class_of(oracle.folder)
        # It knows pre-tokenizers by hashes.
        converter.get_vocab_base_pre = lambda self, tokenizer: "default"
        write_with(converter, oracle.folder, theirs)
    mine, other = GgufFile(path), GgufFile(theirs)
    assert set(mine.tensors) == set(other.tensors)
    for tensor in mine.tensors:
        assert bytes(mine.data(tensor)) == bytes(other.data(tensor)), tensor
    ours, size = load_tokenizer(path), load_tokenizer(oracle.folder).vocab_size
    for key, value in other.metadata.items():
        if key.startswith(("bert.", "tokenizer.ggml.")):
            own = mine.metadata.get(key, value)
            is_list = isinstance(value, list | array)
            assert (own[:size] == value[:size]) if is_list else own == value, key
    for text in TEXTS:
        assert load_tokenizer(theirs).encode(text) == ours.encode(text)


def test_byte_level_vocabulary_of_an_encoder(create_encoder, tmp_path):
    """As RoBERTa has: two ends between texts."""
    oracle, path = create_encoder("roberta"), tmp_path / "model.gguf"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=101, special_tokens=special)
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    ends = ("</s>", 2), ("<s>", 0)
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    names = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    made.save_pretrained(oracle.folder)
    done = CliRunner().invoke(cli, ["convert", str(oracle.folder), str(path)])
    assert done.exit_code == 0, done.output
    ours, theirs = load_tokenizer(path), load_tokenizer(oracle.folder)
    assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
    assert ours.encode_pair(*TEXTS[:2]) == theirs.encode_pair(*TEXTS[:2])


def test_an_activation_that_no_key_is_for(encoder):
    with pytest.raises(UnsupportedArchitectureError, match="hidden_act must be 'gelu'"):
        GgufExport(encoder("bert-gelu-tanh").folder, "F32")
