"""Families are data: short files, one row of the documentation each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.checkpoints.gguf.gguf_names import GGUF_FAMILIES
from quire.models.config.registry import FAMILIES
from quire.models.families import llama
from quire.models.gguf.gguf_architectures import ARCHITECTURES

FILES = sorted(Path(llama.__file__).parent.glob("*.py"))
DOCUMENT = Path(__file__).parents[2] / "docs/models.md"
#: Of which other families use the readers.
SHARED = ("llama.py",)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_family_is_a_short_file(path):
    assert path.name in SHARED or len(path.read_text().splitlines()) < 100


def test_the_documentation_lists_all_families_and_their_gguf_architectures():
    (section,) = re.findall(r"## What is supported\n(.*?)\n## ", DOCUMENT.read_text(), re.DOTALL)
    rows = [line.split("|")[2:4] for line in section.splitlines() if line.startswith("| ")][1:]
    listed = {
        cells[0].strip(" `"): next(iter(re.findall(r"`(.*?)`", cells[1])), None) for cells in rows
    }
    names = {name: family.architecture for name, family in GGUF_FAMILIES.items()}
    assert listed == {name: names.get(name) for name in FAMILIES}


def test_tables_of_gguf_architectures_are_of_the_same():
    assert {family.architecture for family in GGUF_FAMILIES.values()} == set(ARCHITECTURES)
    for name, architecture in ARCHITECTURES.items():
        _, other = architecture.instead or ("", architecture.model)
        classes = (architecture.model, other)
        assert name in [GGUF_FAMILIES[model].architecture for model in classes]
