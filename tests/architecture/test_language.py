"""The rules of language that a machine can judge; CONTRIBUTING.md states them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = set(" .cpp .css .def .h .html .inc .js .md .py .service .toml .txt .yml".split(" "))
#: Folders and documents where requests, clients and ranks are called so.
PLACES = [
    "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "benchmarks", "deploy", "docs", "native",
    "quire", "scripts", "tests", "tools",
]  # fmt: skip
#: Further documents without ids of requirements.
OURS = ["CHANGELOG.md", "CMakeLists.txt"]
#: Files whose words are text that the model learns, data under test, or this list itself.
EXEMPT = (
    "quire/assets/quire-tiny/eval/",
    "tests/architecture/test_language.py",
    "tests/robustness/inputs/",
    "tools/quire_tiny/data/",
)
#: Pronouns, prepositions, conjunctions and auxiliaries: no docstring or argument line begins so.
CLOSED = set(
    "it its they their them this that these those what which who whose whom how where when why "
    "there here of as by in on at to for from with without between before after under over until "
    "while since if unless and but or nor not than so is are was were be been has have had may "
    "must can could should would will shall".split()
)
#: Verbs without a subject, participles without a noun, and adverbs: no argument line begins so.
UNBOUND = set(
    "do does did gets gives takes makes says tells holds keeps shows sends reads computes "
    "multiplies returns ends goes comes needs wants knows asks adds fills finds told asked "
    "added given sent made taken held kept read seen found used set computed shown naming "
    "always also even just like only too else".split()
)
DOCSTRING = re.compile(r'^ *r?("""|\'\'\')(.*?)\1', re.DOTALL | re.MULTILINE)
SECTION = re.compile(
    r"^( *)(?:Args|Attributes|Keyword Args|Raises|(Returns|Yields)):\n((?:\1 .*\n|\n)*)",
    re.MULTILINE,
)
PEOPLE = re.compile(
    r"nobody|somebody|someone|whoever|anybody|anyone|everybody|everyone|\bwhom\b", re.IGNORECASE
)
REQUIREMENT = re.compile(r"\b(?:BAT|CHK|GTW|INF|KVC|MEM|OPS|PAG|PFX|QNT|STR)-\d\d")


def sources(*places: str) -> dict[str, str]:
    """Return the texts that people write, by the names of their files."""
    found = {}
    for place in places:
        assert (ROOT / place).exists(), f"{place} is not there"
        for path in [ROOT / place, *(ROOT / place).rglob("*")]:
            name = str(path.relative_to(ROOT))
            if path.suffix in SUFFIXES and path.is_file() and not name.startswith(EXEMPT):
                found[name] = path.read_text()
    return found


def line_at(text: str, start: int) -> str:
    """Return the number of the line at a place of a text, and the line."""
    line = text[text.rfind("\n", 0, start) + 1 :].partition("\n")[0]
    return f"{text.count(chr(10), 0, start) + 1}: {line.strip()}"


def argument_words(docstring: str) -> Iterator[tuple[int, str]]:
    """Yield where the lines of arguments, attributes, errors and results begin, and their word."""
    for section in SECTION.finditer(docstring):
        indent, result, items = section.groups()
        begin = rf"\A{indent}    (\w+)" if result else rf"^{indent}    [*`\w][^:\n]*?: +(\w+)"
        for word in re.finditer(begin, items, re.MULTILINE):
            yield section.start(3) + word.start(1), word[1].lower()


def misbegun(code: str) -> Iterator[str]:
    """Yield the lines of docstrings that begin with neither a noun nor what else they may."""
    for docstring in DOCSTRING.finditer(code):
        start, text = docstring.start(2), docstring[2]
        first = re.match(r"\s*([A-Za-z]+)", text)
        if first and first[1].lower() in CLOSED:
            yield line_at(code, start + first.start(1))
        for at, word in argument_words(text):
            if word in CLOSED | UNBOUND:
                yield line_at(code, start + at)


def test_docstrings_and_argument_lines_begin_with_their_word() -> None:
    """A docstring with a verb or a noun; an argument with a noun, an article, a number, a shape."""
    found = [
        f"{name}:{line}"
        for name, text in sources("quire").items()
        if name.endswith(".py")
        for line in misbegun(text)
    ]
    assert not found, "\n".join(found)


def lines_with(pattern: re.Pattern[str], *places: str) -> str:
    """Return the lines of some places in which a pattern is found."""
    return "\n".join(
        f"{name}:{line_at(text, match.start())}"
        for name, text in sources(*places).items()
        for match in pattern.finditer(text)
    )


def test_requests_clients_and_ranks_are_called_so() -> None:
    assert not (found := lines_with(PEOPLE, *PLACES)), found


def test_ids_of_requirements_stay_out() -> None:
    assert not (found := lines_with(REQUIREMENT, *PLACES, *OURS)), found


def documented(first: str, line: str = "size: Tokens of a block.", section: str = "Args") -> str:
    """Return a function whose docstring has a first line and a section of one line."""
    return f'def f(size):\n    """{first}\n\n    {section}:\n        {line}\n    """\n'


@pytest.mark.parametrize(
    "code",
    [
        documented("What it is told of blocks."),
        documented("Have the engine wait."),
        documented("From a request to tokens."),
        documented("Wait.", "size: Of a block, in tokens."),
        documented("Wait.", "size, ids: It is kept."),
        documented("Wait.", "size: That a rank may use."),
        documented("Wait.", "size: Told of each block."),
        documented("Wait.", "other: The other.\n        size: Takes a block."),
        documented("Wait.", "ConfigError: There is no block.", "Raises"),
        documented("Wait.", "When it is over.", "Returns"),
    ],
)
def test_a_line_that_begins_otherwise_is_found(code: str) -> None:
    assert len(list(misbegun(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        documented("Return the blocks."),
        documented("Whether a block is full."),
        documented("``GET /health``: what it says."),
        documented("Wait.", "size: (B, T) of a block; it is kept.\n            Of tokens: none."),
        documented("Wait.", "size: The tokens of a block."),
        documented("Wait.", "size: 4 or more."),
        documented("Wait.", "size: See :meth:`f`."),
        documented("Wait.", "ConfigError: No block is left.", "Raises"),
        documented("Wait.", "(B,) int32; of each row the next.", "Returns"),
        'TEXT = """\nOf no interest.\n"""',
    ],
)
def test_other_lines_are_not_found(code: str) -> None:
    assert list(misbegun(code)) == []


@pytest.mark.parametrize("text", ["Nobody waits.", "def test_it_stops_nobody_else():", "to whom"])
def test_people_are_found(text: str) -> None:
    assert PEOPLE.search(text)


@pytest.mark.parametrize("text", ["no request waits", "any one of them", "SHA-256, AVX-512"])
def test_others_are_not_found(text: str) -> None:
    assert not PEOPLE.search(text) and not REQUIREMENT.search(text)
