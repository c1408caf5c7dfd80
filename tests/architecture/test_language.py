"""Words that stay out of code, comments, messages and documents; CONTRIBUTING.md says why."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = set(" .cpp .css .def .h .html .js .md .py .service .toml .txt .yml".split(" "))
#: Files and folders that the list holds for. A folder is added once it is clean.
CLEAN = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CMakeLists.txt",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks",
    "deploy",
    "docs",
    "native",
    "quire/bench",
    "quire/cli",
    "quire/core",
    "quire/engine",
    "quire/evaluation",
    "quire/layers",
    "quire/llm",
    "quire/protocol",
    "quire/quantization",
    "quire/quantizing",
    "quire/runner",
    "quire/server",
    "quire/text",
    "scripts",
    "tests",
    "tools",
]
#: Where a word is text that the model learns, or data under test, or the list itself.
EXEMPT = [
    "tests/architecture/test_language.py",
    "tests/robustness/inputs/",
    "tools/quire_tiny/data/",
]
#: What must not be said, and what to say instead.
WORDS = {
    r"(?<!lags )(?<!left )(?<!leaves )\bbehind\b(?! a (?:load )?(?:proxy|balancer))": "after",
    r"\bbeside\b": "besides, with, next to or other than",
    r"\b(?:has|have|had) not (?:a|an|any|the)\b": "does not have",
    r"\bso many\b": "that many, this many, or the number's name",
    r"(?<!word )(?<! t )(?<!not )\bin words\b": "as text",
    r"\bwho comes\b": "a client that comes",
    r"\bwhat is no (?!longer|t)": "what is not a",
    r"\b(?:BAT|CHK|GTW|INF|KVC|MEM|OPS|PAG|PFX|QNT|STR)-\d\d": "what it demands",
}


def sources(part: str) -> list[Path]:
    """Return the files of a folder that people write, or a file itself."""
    path = ROOT / part
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    return [
        p
        for p in found
        if p.is_file()
        and p.suffix in SUFFIXES
        and not any(str(p.relative_to(ROOT)).startswith(e) for e in EXEMPT)
    ]


@cache
def certain_parts(pattern: str) -> list[str]:
    """Return texts in small letters; whatever a pattern finds has one of them in it.

    To look for those takes a hundredth of the time, and most files have none.
    """
    if choice := re.match(r"\\b\(\?:([A-Z|]+)\)-", pattern):
        return [f"{word}-" for word in choice[1].lower().split("|")]
    outside = re.sub(r"\((?:[^()]|\([^()]*\))*\)|\\b", "|", pattern)
    return [max(outside.split("|"), key=len)]


def found_words(text: str) -> list[str]:
    """Return the lines of ``text`` that hold a word of the list, with what to say instead."""
    found = []
    small = text.lower()
    for pattern, instead in WORDS.items():
        if not any(part in small for part in certain_parts(pattern)):
            continue
        for match in re.finditer(pattern, text, re.IGNORECASE):
            line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
            number = text.count("\n", 0, match.start()) + 1
            found.append(f"{number}: {match[0]!r} (say {instead}): {line.strip()}")
    return found


def test_words_of_the_list_are_not_used() -> None:
    files = {part: sources(part) for part in CLEAN}
    assert [part for part, paths in files.items() if not paths] == [], "no such file or folder"
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for paths in files.values()
        for path in paths
        for line in found_words(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "the step behind it",
        "Behind every token",
        "weights beside the file",
        "the machine has not the memory",
        "after so many tokens",
        "its kind, in words",
        "who comes meanwhile",
        "what is no JSON",
        "BAT-04: the head waits",
    ],
)
def test_a_word_of_the_list_is_found(line: str) -> None:
    assert found_words(line)


@pytest.mark.parametrize(
    "line",
    [
        "a server behind a proxy",
        "nothing is left behind",
        "besides, it has not been seen",
        "what is not given; what is no longer there",
        "for word in words: SHA-256, AVX-512",
    ],
)
def test_other_words_are_not_found(line: str) -> None:
    assert not found_words(line)
