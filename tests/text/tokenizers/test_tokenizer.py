"""Tokenizers agree with transformers and sentencepiece, and bad files are refused by name."""

from __future__ import annotations

import gc
import json
import shutil
import time
import warnings
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.core.errors import CapacityError, ModelLoadError, RequestError
from quire.system.heap import heap_bytes
from quire.text.offloading import INLINE_CHARACTERS
from quire.text.tokenizers import tokenizer_process
from quire.text.tokenizers.sentencepiece_model import BPE, SentencePieceModel, build_tokenizer
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.text.conftest import TEXTS
from tools.small_tokenizers import MAKERS, make_sentencepiece, save_config, small_checkpoint


def oracle(folder: Path):
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("num_tokens", [3, 40, 500])
def test_the_beginning_of_a_text_has_the_tokens_of_the_whole(tokenizer, num_tokens):
    whole = "\n".join(TEXTS * 30)
    for text in (*TEXTS, whole, " " * 40_000):
        ids, found = tokenizer.encode(text), tokenizer.encode_beginning(text, num_tokens)
        start, end = tokenizer._ends()
        if len(ids) <= num_tokens:
            assert found == ids
        else:
            kept = num_tokens - len(start) - len(end)
            assert found == [*start, *tokenizer.encode(text, False)[:kept], *end]
            assert len(found) == num_tokens


def test_a_long_text_has_the_tokens_of_the_library(tokenizer):
    """It is tokenized another way, so that other threads go on."""
    text = "\n".join(TEXTS * (INLINE_CHARACTERS // len("".join(TEXTS)) + 2))
    assert len(text) > INLINE_CHARACTERS
    for added in (True, False):
        ids = tokenizer.backend.encode(text, add_special_tokens=added).ids
        assert tokenizer.encode(text, added) == ids
    with pytest.raises(RequestError, match="valid Unicode"):
        tokenizer.encode("\ud800" * INLINE_CHARACTERS)


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_and_text_equal_transformers(folder, tokenizer, add_special_tokens):
    expected = oracle(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        assert ids == expected.encode(text, add_special_tokens=add_special_tokens), text
        assert tokenizer.convert_ids_to_tokens(ids) == expected.convert_ids_to_tokens(ids)
        for skip in (True, False):
            assert tokenizer.decode(ids, skip) == expected.decode(ids, skip_special_tokens=skip)


def test_named_tokens_equal_transformers(folder, tokenizer):
    expected = oracle(folder)
    assert tokenizer.bos_token_id == expected.bos_token_id
    assert tokenizer.eos_token_id == expected.eos_token_id
    assert tokenizer.vocab_size == len(expected)
    special = {i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)}
    assert special == {i for i, t in expected.added_tokens_decoder.items() if t.special}


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_ids_decode_like_transformers(folders, tokenizers_by_kind, data):
    # Byte-level only: there every sequence, however broken, has the same text in both.
    expected = test_any_ids_decode_like_transformers.__dict__.setdefault(
        "oracle", oracle(folders["byte_level"])
    )
    tokenizer = tokenizers_by_kind["byte_level"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=30))
    for skip in (True, False):
        assert tokenizer.decode(ids, skip) == expected.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_ids_decode_like_sentencepiece(folders, tokenizers_by_kind, data):
    # transformers shows a whole run of bytes as U+FFFD when one of them is wrong; sentencepiece,
    # whose format this is, keeps the good characters. That can be streamed, so it is ours too.
    expected = sentencepiece.SentencePieceProcessor(
        str(folders["sentencepiece"] / "tokenizer.model")
    )
    space = expected.piece_to_id("<0x20>")  # At the start transformers cuts it, which is ours too.
    ids = st.integers(3, expected.vocab_size() - 1).filter(lambda i: i != space)
    ids = data.draw(st.lists(ids, max_size=30))
    assert tokenizers_by_kind["sentencepiece"].decode(ids) == expected.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_text_survives_the_round_trip(tokenizers_by_kind, text):
    for kind in ("byte_level", "sentencepiece"):
        tokenizer = tokenizers_by_kind[kind]
        ids = tokenizer.encode(text, add_special_tokens=False)
        # HF's Metaspace adds no space to a text that has one (or its stand-in) in front.
        expected = text if kind == "byte_level" else text.replace("▁", " ").removeprefix(" ")
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_token_bytes_concatenate_to_the_text(tokenizers_by_kind, text):
    tokenizer = tokenizers_by_kind["byte_level"]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_token_bytes_of_each_kind_of_token(tokenizers_by_kind):
    spm = tokenizers_by_kind["sentencepiece"]
    assert spm.token_bytes(spm.token_to_id("<0xAB>")) == b"\xab"
    assert spm.token_bytes(spm.token_to_id("▁Hello") or spm.token_to_id("▁")).startswith(b" ")
    assert spm.token_bytes(spm.token_to_id("</s>")) == b"</s>"
    byte_level = tokenizers_by_kind["byte_level"]
    assert byte_level.token_bytes(byte_level.token_to_id("két szó")) == "két szó".encode()
    assert byte_level.token_bytes(byte_level.token_to_id("é")) == b"\xe9"
    assert byte_level.token_bytes(byte_level.token_to_id("Ġa")) == b" a"
    assert byte_level.token_bytes(10**9) == b""


@pytest.mark.parametrize("add_bos_token", [True, False])
@pytest.mark.parametrize("add_eos_token", [True, False])
def test_start_and_end_options_of_sentencepiece(folders, tmp_path, add_bos_token, add_eos_token):
    shutil.copy(folders["sentencepiece"] / "tokenizer.model", tmp_path)
    save_config(
        tmp_path,
        tokenizer_class="LlamaTokenizer",
        legacy=False,
        add_bos_token=add_bos_token,
        add_eos_token=add_eos_token,
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Hello") == oracle(tmp_path).encode("Hello")


def test_prefix_option_of_sentencepiece(folders, tmp_path):
    shutil.copy(folders["sentencepiece"] / "tokenizer.model", tmp_path)
    save_config(
        tmp_path, tokenizer_class="LlamaTokenizer", add_bos_token=True, add_prefix_space=False
    )
    tokenizer, expected = load_tokenizer(tmp_path), oracle(tmp_path)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == expected.encode(text)
        assert tokenizer.decode(ids) == expected.decode(ids, skip_special_tokens=True)


def test_start_option_does_not_override_tokenizer_json(folders, tmp_path):
    shutil.copy(folders["byte_level"] / "tokenizer.json", tmp_path)
    save_config(tmp_path, tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False)
    assert load_tokenizer(tmp_path).encode("Hello") == oracle(tmp_path).encode("Hello")


def test_tokens_added_by_the_configuration(folders, tmp_path):
    shutil.copy(folders["sentencepiece"] / "tokenizer.model", tmp_path)
    size = load_tokenizer(tmp_path).vocab_size
    save_config(
        tmp_path,
        tokenizer_class="LlamaTokenizer",
        legacy=False,
        add_bos_token=True,
        added_tokens_decoder={
            "0": {"content": "<unk>", "special": True, "normalized": False},
            str(size): {"content": "<pad>", "special": True, "normalized": False},
            str(size + 1): {"content": "<think>", "special": False, "normalized": False},
        },
        additional_special_tokens=["<pad>"],
    )
    tokenizer, expected = load_tokenizer(tmp_path), oracle(tmp_path)
    text = "a<pad> b <think> c"
    assert tokenizer.encode(text) == expected.encode(text)
    assert (tokenizer.is_special(size), tokenizer.is_special(size + 1)) == (True, False)


def test_tokens_of_the_older_files(folders, tmp_path):
    shutil.copy(folders["sentencepiece"] / "tokenizer.model", tmp_path)
    size = load_tokenizer(tmp_path).vocab_size
    save_config(tmp_path, tokenizer_class="LlamaTokenizer", add_bos_token=True, legacy=False)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|end|>": size}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    tokenizer, expected = load_tokenizer(tmp_path), oracle(tmp_path)
    assert tokenizer.eos_token_id == expected.eos_token_id == size
    assert tokenizer.encode("x<|end|>") == expected.encode("x<|end|>")


def test_sentencepiece_model_equals_sentencepiece(folders, tmp_path):
    shutil.copy(folders["sentencepiece"] / "tokenizer.model", tmp_path)
    expected = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Hello") == [expected.bos_id(), *expected.encode("Hello")]
    for text in TEXTS:
        if "s>" not in text:  # sentencepiece knows no special tokens in text.
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert ids == expected.encode(text), text
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", ["llama-spm", "gpt-2"])
def test_real_vocabularies(name):
    folder = Path(__file__).parents[4] / "shared/data/gguf-vocab"
    if not folder.is_dir():
        pytest.skip(f"the real vocabularies are not at {folder}")
    metadata = GgufFile(folder / f"ggml-vocab-{name}.gguf").metadata
    listed = {
        key: list(metadata[f"tokenizer.ggml.{key}"])
        for key in ("tokens", "scores", "token_type", "merges")
        if f"tokenizer.ggml.{key}" in metadata
    }
    if name == "llama-spm":
        model = SentencePieceModel(
            listed["tokens"], listed["scores"], listed["token_type"], BPE, byte_fallback=True
        )
        model.remove_extra_whitespaces = False
        backend = build_tokenizer(model)
    else:
        vocabulary = {token: i for i, token in enumerate(listed["tokens"])}
        merges = [tuple(merge.split(" ")) for merge in listed["merges"]]
        backend = Backend(models.BPE(vocabulary, merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend, {}, None)
    for case in json.loads((folder / "cases.json").read_text())[name]["cases"]:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["text"]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_normalising_sentencepiece_model_equals_sentencepiece(tmp_path, model_type):
    make_sentencepiece(
        tmp_path,
        model_type=model_type,
        vocab_size=330,
        normalization_rule_name="nmt_nfkc",
        remove_extra_whitespaces=True,
    )
    expected = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    tokenizer = load_tokenizer(tmp_path)
    for text in ("Hello  world", "  ﬁne ", "½ cafés and dogs", "東京１２"):
        assert tokenizer.encode(text, add_special_tokens=False) == expected.encode(text), text


def test_prompts_are_never_truncated(tokenizers_by_kind):
    assert len(tokenizers_by_kind["byte_level"].encode("a b " * 50)) > 50


def test_lone_surrogates_are_a_request_error(tokenizer):
    with pytest.raises(RequestError, match="valid Unicode"):
        tokenizer.encode("broken \ud800")


BAD_FILES = {
    "nothing": {},
    "cut tokenizer.json": {"tokenizer.json": '{"model": {"type": "BPE", "voc'},
    "tokenizer.json of another kind": {"tokenizer.json": "[1, 2]"},
    "empty tokenizer.json": {"tokenizer.json": ""},
    "cut tokenizer.model": {"tokenizer.model": "\x0a\x7fabc"},
    "tokenizer.model of zeros": {"tokenizer.model": "\x00" * 64},
    "empty tokenizer.model": {"tokenizer.model": ""},
    "bad configuration": {"tokenizer_config.json": "{"},
    "configuration of another kind": {"tokenizer_config.json": "[]"},
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_named(tmp_path, name):
    for file, content in BAD_FILES[name].items():
        (tmp_path / file).write_text(content)
    with pytest.raises(ModelLoadError, match=r"^\[tokenizer\] .*; got .*\. .*") as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


BAD_CONFIGS = {
    "token without text": {"bos_token": {"lstrip": True}},
    "added tokens no object": {"added_tokens_decoder": [1]},
    "added token without number": {"added_tokens_decoder": {"x": {"content": "a"}}},
    "added token with a gap": {"added_tokens_decoder": {"9999": {"content": "<new>"}}},
    "template of another kind": {"chat_template": 3},
    "unnamed template": {"chat_template": [{"template": ""}]},
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_configurations_are_named(folders, tmp_path, name):
    shutil.copy(folders["byte_level"] / "tokenizer.json", tmp_path)
    save_config(tmp_path, **BAD_CONFIGS[name])
    with pytest.raises(ModelLoadError, match=r"^\[tokenizer\] ") as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_unknown_decoder_is_refused(folders, tmp_path):
    saved = json.loads((folders["byte_level"] / "tokenizer.json").read_text())
    saved["decoder"] = {
        "type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    with pytest.raises(ModelLoadError, match="CTC"):
        load_tokenizer(tmp_path)


def test_panic_of_the_library_is_a_load_error(folders, tmp_path):
    saved = json.loads((folders["byte_level"] / "tokenizer.json").read_text())
    saved["post_processor"]["special_tokens"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    with pytest.raises(ModelLoadError, match="tokenizers library refuses"):
        load_tokenizer(tmp_path)


def changed(folders, folder: Path, **parts: object) -> Path:
    """Save the byte-level tokenizer with other parts."""
    saved = json.loads((folders["byte_level"] / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(saved | parts))
    return folder


def replacing(pattern: object, content: str, times: int = 1) -> dict[str, object]:
    step = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [step] * times}


@pytest.mark.parametrize(
    "normalizer",
    [
        replacing({"String": "a"}, "aa", 40),
        replacing({"Regex": "a"}, "aa", 6),
        replacing({"String": "a"}, "a" * 1000),
        {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 20},
        {
            "type": "Precompiled",
            "precompiled_charsmap": b64encode(b"\x04\0\0\0\0\0\0\0" + b"a" * 999).decode(),
        },
    ],
)
def test_a_tokenizer_made_texts_grow_without_end(folders, tmp_path, normalizer):
    """Forty normalizers that double a text took all memory at the first use, of one letter."""
    with pytest.raises(ModelLoadError, match="times as long, more than 256"):
        load_tokenizer(changed(folders, tmp_path, normalizer=normalizer))


@pytest.mark.parametrize(
    ("pattern", "content"), [({"String": " "}, "▁"), ({"Regex": " {2,}"}, " ")]
)
def test_usual_normalizers_are_kept(folders, tmp_path, monkeypatch, pattern, content):
    monkeypatch.setattr(tokenizer_process, "try_out", pytest.fail)
    load_tokenizer(changed(folders, tmp_path, normalizer=replacing(pattern, content)))


def split_at(pattern: str) -> dict[str, object]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    letters = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False
    }  # fmt: skip
    return {"type": "Sequence", "pretokenizers": [split, letters]}


def test_unknown_patterns_are_tried_within_limits_first(folders, tmp_path, monkeypatch):
    folder = changed(folders, tmp_path, pre_tokenizer=split_at("[a-f]+x?"))
    assert load_tokenizer(folder).encode("cabbage")
    monkeypatch.setattr(tokenizer_process, "LOAD_SECONDS", 0.0)
    with pytest.raises(ModelLoadError, match="one that takes more than 0 s at its first use"):
        load_tokenizer(folder)


def test_a_text_at_which_the_library_panics_is_refused(folders, tmp_path):
    """A panic is no Exception: it was a traceback, and the server's fault."""
    tokenizer = load_tokenizer(changed(folders, tmp_path, pre_tokenizer=split_at("(a+)+$")))
    assert tokenizer.work_size(1) >= INLINE_CHARACTERS  # the shortest text may take a second
    for text in ("a" * 40 + "b", ("a" * 40 + "b ") * INLINE_CHARACTERS):
        with pytest.raises(RequestError, match=r"must be what the model's tokenizer can read"):
            tokenizer.encode(text)
    with pytest.raises(RequestError, match=r"must be what the model's tokenizer can read"):
        tokenizer.encode_pair("a" * 40 + "b", "b")


def test_a_text_of_great_length_has_the_same_tokens(folders, monkeypatch):
    """The list of its tokens held the interpreter, and so all streams, for half a second."""
    tokenizer = load_tokenizer(folders["byte_level"])
    text = "Hello <|im_end|> 東京 naïve  cafés\n" * 400
    expected = tokenizer.encode(text)
    cut = tokenizer.special_texts.cut(text)
    expected_parts = tokenizer.encode_parts(cut)
    monkeypatch.setattr(tokenizer.backend, "encode_batch_fast", pytest.fail, raising=False)
    monkeypatch.setattr("quire.text.tokenizers.tokenizer.PROCESS_CHARACTERS", 8192)
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode_parts(cut) == expected_parts != expected


def test_files_that_are_gone_are_no_fault_of_a_text(folders, tmp_path):
    shutil.copytree(folders["byte_level"], tmp_path / "gone")
    tokenizer = load_tokenizer(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(CapacityError, match="has changed since it was loaded") as caught:
        tokenizer.encode("ab" * 2**19)
    assert str(tmp_path) not in str(caught.value)


def test_a_server_that_ends_waits_for_no_text(folders):
    tokenizer = load_tokenizer(folders["byte_level"])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(tokenizer.encode, "ab " * 2**21)
        while not tokenizer_process._running:
            time.sleep(0.01)
        tokenizer_process.kill_running()
        with pytest.raises(CapacityError, match="SIGKILL"):
            reading.result(60)
    assert not tokenizer_process._running


def test_a_text_that_takes_too_much_is_refused(folders, monkeypatch):
    tokenizer = load_tokenizer(folders["byte_level"])
    monkeypatch.setattr("quire.text.tokenizers.tokenizer.PROCESS_CHARACTERS", 8192)
    monkeypatch.setattr(tokenizer_process, "LOAD_SECONDS", 0.0)
    monkeypatch.setattr(tokenizer_process, "TEXT_SECONDS", 0.0)
    with pytest.raises(
        RequestError, match=r"got 9000 characters, which take more than 0 s"
    ) as caught:
        tokenizer.encode("a" * 9000)
    assert caught.value.param == "prompt"
    with pytest.raises(RequestError, match="valid Unicode"):
        monkeypatch.undo()
        tokenizer.encode("a" * 2**20 + "\ud800")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_sentencepiece_models_never_crash(folders, tmp_path_factory, data):
    good = (folders["sentencepiece"] / "tokenizer.model").read_bytes()[:4000]
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(st.sampled_from([good[:at], good[:at] + b"\xff" + good[at + 1 :]]))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "tokenizer.model").write_bytes(bad)
    try:
        load_tokenizer(folder).encode("text")
    except ModelLoadError as error:
        assert str(folder) in str(error)


@pytest.mark.parametrize("kind", MAKERS)
def test_words_that_are_kept_are_few(tmp_path, kind):
    """Heap and not objects: the cache is the library's. Unlimited, it grows by megabytes here."""
    small_checkpoint(tmp_path, kind)
    tokenizer = load_tokenizer(tmp_path)
    expected = tokenizer.encode("one two three")
    tokenizer.limit_cache(100)

    def encode_words(start: int, stop: int) -> int:
        for number in range(start, stop):
            tokenizer.encode(f"{number:x}".translate(str.maketrans("0123456789", "ghijklmnop")) * 3)
        gc.collect(1)  # what is older is not of these words, and in a long run it takes seconds
        return heap_bytes()[0]

    before = encode_words(0, 1000)
    assert encode_words(10_000, 13_000) - before < 2**19
    assert tokenizer.encode("one two three") == expected
