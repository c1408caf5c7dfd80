"""The form of a result file: summaries of samples, a key of the head and a row a line."""

from __future__ import annotations

import json

from benchmarks import results, weight_formats

ROW = {"rate": {"median": 2.0, "min": 1.0}, "words": "x" * 300}
DOCUMENT = {
    "name": "speed",
    "machine": {"cpu": "a", "isa": ["b", "c"]},
    "wanted": {"results > 1 > n": {"at_least": 2}},
    "empty": {},
    "results": {1: ROW, "listed": [ROW] * 3, "deep": {key: {"of": ROW} for key in "ab"}},
}


def test_a_row_is_a_line(tmp_path):
    path = tmp_path / "speed.json"
    results.save(path, DOCUMENT)
    assert json.loads(path.read_text()) == json.loads(json.dumps(DOCUMENT))
    row = json.dumps(ROW)
    assert path.read_text().splitlines() == [
        "{",
        ' "name": "speed",',
        ' "machine": {"cpu": "a", "isa": ["b", "c"]},',
        ' "wanted": {',
        '  "results > 1 > n": {"at_least": 2}',
        " },",
        ' "empty": {},',
        ' "results": {',
        f'  "1": {row},',
        '  "listed": [',
        f"   {row},",
        f"   {row},",
        f"   {row}",
        "  ],",
        '  "deep": {',
        f'   "a": {{"of": {row}}},',
        f'   "b": {{"of": {row}}}',
        "  }",
        " }",
        "}",
    ]


def test_every_file_has_this_form(tmp_path):
    for path in results.RESULTS.glob("*.json"):
        again = tmp_path / path.name
        results.save(again, json.loads(path.read_text()))
        assert again.read_text() == path.read_text(), f"write {path.name} with results.save"


def test_rounds_become_their_summary():
    row = {"label": "int4", "decode": {"1": {"median": 2.0, "rounds": [1.0, 2.0, 4.0]}}}
    (figures,) = weight_formats._without_rounds(row)["decode"].values()
    assert figures == results.summary([1.0, 2.0, 4.0])
