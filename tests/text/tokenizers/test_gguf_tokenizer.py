"""Tokenizers of GGUF files: real vocabularies, round trips of folders, and every contradiction."""

import json
from array import array
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.core.errors import ModelLoadError
from quire.text.tokenizers.fim_tokens import FimTokens
from quire.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS, find_pre_tokenizer
from quire.text.tokenizers.gguf_vocabulary import gguf_vocabulary
from quire.text.tokenizers.tokenizer import load_tokenizer

TEXTS = [
    "", " ", "Hello world", "  two  spaces", "it's 2024, I'LL say 12345!", "\n\n\tx\r\n ",
    "Führer ½ ² 東京 🦙", "a<|im_end|>b", "<|im_start|>user\nhi<|im_end|>", "CamelCaseWord's",
]  # fmt: skip


@pytest.mark.parametrize("name", ["llama-spm", "gpt-2"])
def test_real_vocabularies(name):
    folder = Path(__file__).parents[4] / "shared/data/gguf-vocab"
    if not folder.is_dir():
        pytest.skip(f"the real vocabularies are not at {folder}")
    tokenizer = load_tokenizer(folder / f"ggml-vocab-{name}.gguf")
    for case in json.loads((folder / "cases.json").read_text())[name]["cases"]:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["text"]
    start = [tokenizer.bos_token_id] if name == "llama-spm" else []
    assert tokenizer.encode("hi")[: len(start)] == start
    assert tokenizer.eos_token_id == (2 if name == "llama-spm" else 50256)


#: What the models' own tokenizers make of a text, byte-level letters shown as text.
CUTS = {
    "deepseek-llm": (
        "if x1234:\n\n 東京è",
        ["if", " x", "1234", ":", "\n", "\n", " ", "東京", "è"],
    ),
    "deepseek-coder": ("a+=12;\n東京は", ["a", "+=", "1", "2", ";", "\n", "東京は"]),
    "deepseek-v3": ("12345 .method東京", ["123", "45", " .", "method", "東京"]),
    "falcon": ("it's 12345 $5`", ["it", "'", "s", " ", "123", "45", " ", "$", "5", "`"]),
    "mpt": ("it's 12345  x", ["it", "'s", " 12345", " ", " x"]),
    "bloom": ("Hello, world. é", ["Hello", ",", " world", ".", " é"]),
    "viking": ("in 2024.", ["in", " ", "2", "0", "2", "4", "."]),
    "superbpe": ("a 1234567", ["a ", "1", "234", "567"]),
    "tiny_aya": ("1234567 Ab", ["1", "234", "567", " Ab"]),
    "kimi-k2": ("x東京y's 12345", ["x", "東京", "y's", " ", "123", "45"]),
    "glm4": ("x  y\n\n12345", ["x", " ", " y", "\n\n", "123", "45"]),
    "qwen35": ("हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
}


@pytest.mark.parametrize("name", CUTS)
def test_where_text_is_cut(name):
    text, pieces = CUTS[name]
    cut = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in cut] == pieces


def byte_level(folder, pre, *, normalizer=None, ignore_merges=False):
    """Write a byte-level tokenizer with a few merges, trained on TEXTS, and a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("Ġ", "w"), ("o", "r"), ("Ġw", "or"), ("l", "d"), ("1", "2"), ("Ġ", "Ġ"), ("'", "s")]
    tokens = [*letters, *("".join(pair) for pair in pairs)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["  two"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": "{{ eos_token }}{{ messages[0].role }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


PRE = {name: pre for name, pre in PRE_TOKENIZERS.items() if name in (
    "gpt-2", "default", "llama-bpe", "qwen2", "smollm", "tekken", "gpt-4o", "smaug-bpe"
)}  # fmt: skip


@pytest.mark.parametrize("name", PRE)
def test_round_trip_of_a_byte_level_folder(name, tmp_path):
    pre = PRE[name]
    normalizer = normalizers.NFC() if pre.nfc else None
    byte_level(tmp_path, pre.build(), normalizer=normalizer, ignore_merges=pre.ignore_merges)
    want = load_tokenizer(tmp_path)
    metadata = gguf_vocabulary(tmp_path, 300)
    assert PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]] == pre
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, [])
    got = load_tokenizer(path)
    for text in TEXTS:
        ids = want.encode(text)
        assert got.encode(text) == ids, text
        assert got.decode(ids) == want.decode(ids)
    assert got.vocab_size == 300
    assert got.special_tokens == want.special_tokens
    messages = [{"role": "user", "content": "x"}]
    assert got.chat_template.render(messages) == "<|im_end|>user"


@pytest.mark.parametrize(
    "names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_tokens_around_a_middle_are_read_from_the_files_keys(tmp_path, names):
    byte_level(tmp_path, PRE["gpt-2"].build())
    metadata = gguf_vocabulary(tmp_path, 300)
    ids = {name: 257 + index for index, name in enumerate(names)}
    metadata |= {f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items()}
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, [])
    fim = FimTokens.find(load_tokenizer(path))
    assert (fim.prefix, fim.suffix, fim.middle, fim.missing) == (257, 258, 259, [])
    assert FimTokens.find(load_tokenizer(tmp_path)).missing == ["prefix", "suffix", "middle"]


@pytest.mark.parametrize(
    ("pre", "name"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), "gpt-2"),
        (
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            ),
            "smollm",
        ),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), None),
        (pre_tokenizers.Split(Regex("x"), "isolated"), None),
    ],
)
def test_names_of_ways_to_cut(pre, name, tmp_path):
    assert find_pre_tokenizer(byte_level(tmp_path, pre)) == name


def test_folder_that_no_name_fits_is_refused(tmp_path):
    byte_level(tmp_path, pre_tokenizers.ByteLevel(add_prefix_space=True))
    with pytest.raises(ModelLoadError, match="known pre-tokenizer"):
        gguf_vocabulary(tmp_path, 300)
    byte_level(tmp_path, pre_tokenizers.ByteLevel(add_prefix_space=False))
    with pytest.raises(ModelLoadError, match="must have at most 200 tokens"):
        gguf_vocabulary(tmp_path, 200)


def test_round_trip_of_a_sentencepiece_folder(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text("\n".join(["Hello world, it is a dog."] * 9 + TEXTS))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "tokenizer"),
        model_type="bpe", vocab_size=340, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "added_tokens.json").write_text('{"<|im_end|>": 340}')
    special = {"additional_special_tokens": ["<|im_end|>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    want = load_tokenizer(tmp_path)
    path = tmp_path / "model.gguf"
    write_gguf(path, gguf_vocabulary(tmp_path, 344), [])
    got = load_tokenizer(path)
    for text in TEXTS:
        ids = want.encode(text)
        assert got.encode(text) == ids, text
        assert got.decode(ids) == want.decode(ids)
    assert got.bos_token_id == want.bos_token_id


def test_named_templates_survive(tmp_path):
    byte_level(tmp_path, pre_tokenizers.ByteLevel(add_prefix_space=False))
    templates = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    metadata = gguf_vocabulary(tmp_path, 300)
    assert metadata["tokenizer.chat_templates"] == ["tool_use"]
    write_gguf(tmp_path / "model.gguf", metadata, [])
    got = load_tokenizer(tmp_path / "model.gguf").chat_template
    assert got.templates == {"default": "d", "tool_use": "t"}


def small(**changes):
    """Metadata of a vocabulary of three letters; None removes a key."""
    metadata = {
        "model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab", "<e>"],
        "token_type": array("i", [1, 1, 1, 3]), "merges": ["a b"], "eos_token_id": 3,
    }  # fmt: skip
    metadata |= changes
    return {f"tokenizer.ggml.{k}": v for k, v in metadata.items() if v is not None}


def test_small_vocabulary(tmp_path):
    write_gguf(tmp_path / "v.gguf", small(add_eos_token=True), [])
    assert load_tokenizer(tmp_path / "v.gguf").encode("aab<e>") == [0, 2, 3, 3]


def test_ids_of_no_token(tmp_path):
    """2**32 - 1 is llama.cpp's null token, which its test model has; such files were refused."""
    nothing = {f"{kind}_token_id": 2**32 - 1 for kind in ("bos", "padding", "seperator", "mask")}
    write_gguf(tmp_path / "v.gguf", small(**nothing), [])
    assert load_tokenizer(tmp_path / "v.gguf").special_tokens == {"eos_token": "<e>"}


BROKEN = {
    "kind": ({"model": "rwkv"}, "rwkv"),
    "no-kind": ({"model": None}, "tokenizer.ggml.model must be a string; got none"),
    "no-tokens": ({"tokens": None}, "no tokens"),
    "tokens-are-numbers": ({"tokens": array("i", [1])}, "tokens must be a list of strings"),
    "token-twice": ({"tokens": ["a", "a", "ab", "<e>"]}, "the token 'a' twice"),
    "types": ({"token_type": array("i", [1])}, "1 token types for 4 tokens"),
    "pre": ({"pre": "new"}, "the pre-tokenizer 'new'; supported: "),
    "merge": ({"merges": ["ab"]}, "a merge that is no pair"),
    "merge-unknown": ({"merges": ["a x"]}, "a merge of or to an unknown token"),
    "id": ({"eos_token_id": 4}, "eos_token_id 4 beyond 4 tokens"),
    "flag": ({"add_bos_token": 1}, "add_bos_token must be true or false"),
    "scores": ({"model": "llama"}, "0 scores for 4 tokens"),
    "type": ({"token_type": array("f", [float("inf")] * 4)}, "refuses"),
    "charsmap": (
        {
            "model": "llama",
            "scores": array("f", [0] * 4),
            "token_type": array("i", [2, 1, 1, 3]),
            "precompiled_charsmap": array("B", [1, 2, 3]),
        },
        "refuses",
    ),
    "unknown": ({"model": "llama", "scores": array("f", [0] * 4)}, "no unknown token"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_contradictions_are_refused(name, tmp_path):
    changes, message = BROKEN[name]
    write_gguf(tmp_path / "v.gguf", small(**changes), [])
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_tokenizer(tmp_path / "v.gguf")
    assert "v.gguf" in str(caught.value)
