"""Record what llama.cpp makes of texts under every name of a pre-tokenizer.

    python -m tools.record_pre_tokenizers --peer-python PYTHON    # one that has llama-cpp-python

Writes ``tests/text/pre_tokenizers.json``: a byte-level vocabulary whose merges reach over words, so
that ids show where text was cut, and llama.cpp's ids of each text. Names with the same ids share an
entry. ``tests/text/test_pre_tokenizers.py`` compares ours with them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from array import array
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS

RECORD = Path(__file__).parent.parent / "tests/text/pre_tokenizers.json"
TEXTS = [
    "Hello, y'all! How are you 😁 ?",
    "I'LL don't WE'VE it's o'clock 'tis",
    "1 12 123 1234 12345 123456 1234567",
    "x1 2y 3.14159 1,000,000 0xFF 1e10",
    "def f(x):\n    return x ** 2  # no\n\n\n\tself.x=1;\r\n",
    'https://example.com/a_b?c=d&e=%20#f <div class="x">',
    "Führer naïve ß straße Ünïcödé café",
    "東京は日本の首都です。我想在apple工作1314天～",
    "中文，测试！“引号”…—：；、2024年",
    "한국어 문장입니다. ㄱㄴ 12개",
    "العربية: نص تجريبي، ١٢٣۔ עברית",
    "Русский ТЕКСТ Ёлка. Ελληνικά ΑΒΓ",
    "हिन्दी में १२३।",
    "🦙🦙 👩‍👩‍👧 ♥️ ½ ² ⅓ Ⅷ ①",
    "a  b   c    d     e      f         g",
    "x" + " " * 21 + "y" + " " * 70 + "z",
    " \u3000全角\u3000スペース\u00a0nbsp",
    "\n\n\n a\n \nb\r\n\r\n c \n",
    "!!! ??? ... --- *** === ~~~ ``` $$$ ^^^ ||| <<<>>> @@@ ###",
    "(1+2)*3=9; a[0]={1:2}; p->q; a::b; x//y; !a && ~b",
    "CamelCaseWord's HTTPServer iPhone McDonald's",
    "don’t “quotes” ‘single’ – — the end  ",
    "ไทย ภาษา ລາວ ១២៣",
    "IMGIMGABCZ <sentinel:12> text",
]
SCRIPT = """
import json, sys
from llama_cpp import Llama
for path in json.loads(sys.argv[1]):
    model = Llama(path, vocab_only=True, verbose=False)
    ids = [model.tokenize(text.encode(), add_bos=False) for text in json.loads(sys.argv[2])]
    print(json.dumps(ids), flush=True)
    model.close()
"""
NUM_TOKENS = 700


def train_merges() -> list[str]:
    """Return merges of whole texts, cut nowhere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS, min_frequency=1, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return [" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def write_vocabulary(path: Path, name: str, merges: list[str]) -> None:
    """Write a GGUF file that is a vocabulary alone, cut as ``name`` says."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *dict.fromkeys(merge.replace(" ", "") for merge in merges), "<|end|>"]
    prefix = "tokenizer.ggml."
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        f"{prefix}model": "gpt2",
        f"{prefix}pre": name,
        f"{prefix}tokens": tokens,
        f"{prefix}token_type": array("i", [1] * (len(tokens) - 1) + [3]),
        f"{prefix}merges": merges,
        f"{prefix}bos_token_id": len(tokens) - 1,
        f"{prefix}eos_token_id": len(tokens) - 1,
    }
    write_gguf(path, metadata, [])


def peer_ids(peer_python: str, names: list[str], merges: list[str]) -> list[list[list[int]]]:
    """Return llama.cpp's ids of all texts for each name."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{name}.gguf") for name in names]
        for name, path in zip(names, paths, strict=True):
            write_vocabulary(Path(path), name, merges)
        command = [peer_python, "-c", SCRIPT, json.dumps(paths), json.dumps(TEXTS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    merges, names = train_merges(), list(PRE_TOKENIZERS)
    found = peer_ids(parser.parse_args().peer_python, names, merges)
    cases = []
    for index, text in enumerate(TEXTS):
        same: dict[str, list[str]] = {}
        for name, ids in zip(names, found, strict=True):
            same.setdefault(json.dumps(ids[index]), []).append(name)
        cases.append(
            {"text": text, "ids": {" ".join(n): json.loads(ids) for ids, n in same.items()}}
        )
    lines = [f"  {json.dumps(case)}" for case in cases]
    body = ",\n".join(lines)
    RECORD.write_text(f'{{"merges": {json.dumps(merges)},\n"cases": [\n{body}\n]}}\n')
    print(RECORD)


if __name__ == "__main__":
    main()
