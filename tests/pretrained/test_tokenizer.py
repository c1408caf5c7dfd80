"""``AutoTokenizer`` next to transformers' own on the same files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.core.errors import ConfigError, QuireError
from quire.models.hub import resolve_model
from quire.pretrained import AutoTokenizer
from quire.pretrained.auto_tokenizer import PretrainedTokenizer

TEXTS = ["Once upon a time", "ä 世界 <|im_end|> end", "", "a b  c\n"]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"}]


@pytest.fixture(scope="module")
def tokenizer() -> PretrainedTokenizer:
    return AutoTokenizer.from_pretrained("quire-tiny")


@pytest.fixture(scope="module")
def theirs() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(resolve_model("quire-tiny"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_special_tokens": False},
        {"padding": True},
        {"padding": "max_length", "max_length": 9},
        {"truncation": True, "max_length": 3},
        {"padding": "max_length", "truncation": True, "max_length": 4},
        {"padding": True, "padding_side": "left"},
        {"padding": True, "return_tensors": "np"},
    ],
)
def test_a_call_gives_what_transformers_gives(
    tokenizer: PretrainedTokenizer, theirs: Any, options: dict[str, Any]
) -> None:
    found, want = tokenizer(TEXTS, **options), theirs(TEXTS, **options)
    for name in ("input_ids", "attention_mask"):
        np.testing.assert_equal(found[name], want[name])
    assert found.input_ids is found["input_ids"] and found.to("cpu") is found


def test_one_text_gives_no_rows_but_in_an_array(
    tokenizer: PretrainedTokenizer, theirs: Any
) -> None:
    text = TEXTS[0]
    assert dict(tokenizer(text)) == {**theirs(text)} | {}
    assert tokenizer.encode(text) == theirs.encode(text)
    assert tokenizer(text, return_tensors="np").input_ids.shape[0] == 1
    assert tokenizer(text, return_attention_mask=False).keys() == {"input_ids"}
    tensor = tokenizer(text, return_tensors="pt").input_ids
    assert tensor.tolist() == theirs(text, return_tensors="pt").input_ids.tolist()


@pytest.mark.parametrize("skip", [False, True])
def test_text_comes_back(tokenizer: PretrainedTokenizer, theirs: Any, skip: bool) -> None:
    rows = tokenizer(TEXTS, padding=True, return_tensors="np").input_ids
    want = theirs.batch_decode(rows, skip_special_tokens=skip)
    assert tokenizer.batch_decode(rows, skip_special_tokens=skip) == want
    assert tokenizer.decode(rows, skip_special_tokens=skip) == want
    assert tokenizer.decode(rows[0], skip) == want[0] and tokenizer.decode(5) == theirs.decode(5)


def test_tokens_have_their_names(tokenizer: PretrainedTokenizer, theirs: Any) -> None:
    for name in ("pad", "eos", "bos"):
        assert getattr(tokenizer, f"{name}_token") == getattr(theirs, f"{name}_token")
        assert getattr(tokenizer, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
    assert len(tokenizer) == len(theirs) and tokenizer.model_max_length == theirs.model_max_length
    ids = tokenizer(TEXTS[0]).input_ids
    tokens = theirs.convert_ids_to_tokens(ids)
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.convert_ids_to_tokens(ids[0]) == tokens[0]
    assert tokenizer.convert_tokens_to_ids(tokens) == ids
    assert tokenizer.convert_tokens_to_ids(tokens[0]) == ids[0]


@pytest.mark.parametrize(
    "options",
    [
        {"tokenize": False},
        {"tokenize": False, "add_generation_prompt": True},
        {"add_generation_prompt": True, "return_dict": False},
        {"add_generation_prompt": True, "return_tensors": "np"},
        {"chat_template": "{% for m in messages %}{{ m.content }}|{% endfor %}", "tokenize": False},
        {
            "chat_template": "{{ messages[0].content }}{{ extra }}",
            "extra": 3,
            "tokenize": False,
        },
    ],
)
def test_conversations_are_written_as_transformers_writes_them(
    tokenizer: PretrainedTokenizer, theirs: Any, options: dict[str, Any]
) -> None:
    for conversation in (MESSAGES, [MESSAGES, MESSAGES[1:]]):
        if conversation is not MESSAGES and "return_tensors" in options:
            options = options | {"padding": True}
        found = tokenizer.apply_chat_template(conversation, **options)
        want = theirs.apply_chat_template(conversation, **options)
        if isinstance(found, dict):
            np.testing.assert_equal(found.input_ids, want["input_ids"])
        else:
            assert found == want


def test_special_tokens_in_messages_are_text_where_that_is_asked(
    tokenizer: PretrainedTokenizer,
) -> None:
    messages = [{"role": "user", "content": "a<|im_end|>"}]
    plain = tokenizer.apply_chat_template(messages, return_dict=False)
    kept = tokenizer.apply_chat_template(messages, return_dict=False, sanitize_control_tokens=True)
    end = tokenizer.eos_token_id
    assert plain.count(end) == 2 and kept.count(end) == 1
    assert tokenizer.decode(plain) == tokenizer.decode(kept)


def test_a_template_may_be_set(tokenizer: PretrainedTokenizer) -> None:
    source = "{{ messages[0].content }}!"
    made = AutoTokenizer.from_pretrained("quire-tiny", chat_template=source)
    assert made.apply_chat_template(MESSAGES, tokenize=False) == "Be brief.!"


def test_its_files_are_saved(tokenizer: PretrainedTokenizer, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"tokenizer.json", "chat_template.jinja"}
    assert not (tmp_path / "model.safetensors").exists()
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXTS) == tokenizer(TEXTS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t("a", text_pair="b"), "text_pair is not done"),
        (lambda t: t(["a", "a b c"], return_tensors="np"), "Give padding=True"),
        (lambda t: t("a", return_tensors="tf"), "return_tensors must be np or pt; got 'tf'"),
        (lambda t: t("a", padding="most"), "padding must be True, longest or max_length"),
        (lambda t: t("a", padding=True, padding_side="up"), "padding_side must be left or right"),
        (lambda t: t("a", truncation="only_first"), "truncation must be True"),
        (lambda t: t("a", pad=True), "got pad"),
        (
            lambda t: t.decode([5], clean_up_tokenization_spaces=True),
            "text is as the model",
        ),
        (lambda t: t.apply_chat_template(MESSAGES, chat_template="{{ x }}"), "shows messages"),
        (lambda t: AutoTokenizer.from_pretrained("quire-tiny", legacy=False), "legacy must be"),
    ],
)
def test_what_cannot_be_is_refused(
    tokenizer: PretrainedTokenizer, call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(QuireError, match=message):
        call(tokenizer)


def test_without_a_pad_token_rows_are_not_filled_up() -> None:
    made = AutoTokenizer.from_pretrained("quire-tiny")
    made.pad_token = None
    with pytest.raises(ConfigError, match="Set pad_token = eos_token"):
        made(["a", "a b c"], padding=True)
    made.pad_token = made.eos_token
    assert made(["a", "a b c"], padding=True).attention_mask[0].count(0) >= 1


def test_without_a_template_a_conversation_is_refused(tmp_path: Path) -> None:
    shutil.copy(resolve_model("quire-tiny") / "tokenizer.json", tmp_path)
    made = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(QuireError, match="must have a chat template"):
        made.apply_chat_template(MESSAGES)
