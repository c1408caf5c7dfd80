"""Token ids under every name of a pre-tokenizer, compared with those that llama.cpp gave."""

import json

import pytest

from quire.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS
from quire.text.tokenizers.tokenizer import load_tokenizer
from tools.record_pre_tokenizers import RECORD, write_vocabulary

DATA = json.loads(RECORD.read_text())
CASES = {case["text"]: case["ids"] for case in DATA["cases"]}
#: Names and the beginning of a text where llama.cpp differs from the models' own tokenizers, whose
#: patterns it quotes and simplifies: it keeps combining marks out of words, takes all letters for
#: lower case where a class names their case, and takes only ASCII for white space.
DIFFER = {
    "tekken gpt-4o llama4 kanana2 talkie minimax-m2 kimi-k2": "हिन्दी",
    "tiny_aya cohere2moe youtu kimi-k2": "CamelCase",
    "deepseek-llm": " \u3000全角",
}


def differs(name, text):
    """Return whether llama.cpp is known to differ."""
    return any(name in names.split() and text.startswith(t) for names, t in DIFFER.items())


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_ids_are_llama_cpps(name, tmp_path):
    write_vocabulary(tmp_path / "v.gguf", name, DATA["merges"])
    tokenizer = load_tokenizer(tmp_path / "v.gguf")
    for text, results in CASES.items():
        (want,) = (ids for names, ids in results.items() if name in names.split())
        got = tokenizer.encode(text, add_special_tokens=False)
        assert (got == want) != differs(name, text), text
        assert tokenizer.decode(got) == text
