"""The lines of a dry run, made of settings alone."""

import pytest

from quire.planner.plan_report import engine_lines, ranks_text, role_lines
from quire.settings.parallel_layout import ParallelLayout
from quire.settings.parallel_options import ParallelOptions


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (ParallelLayout(1, 1), "one process"),
        (ParallelLayout(2, 1), "2 ranks: 2 shards of each layer"),
        (ParallelLayout(1, 2), "2 ranks: 2 stages"),
        (ParallelLayout(2, 2), "4 ranks: 2 stages of 2 shards of each layer"),
    ],
)
def test_ranks(layout, text):
    assert ranks_text(layout) == text


def test_engines():
    assert list(engine_lines("tiny", ParallelOptions())) == []
    several = ParallelOptions(data_parallel_size=3)
    assert list(engine_lines("tiny", several)) == ["tiny: 3 engines, with requests of their own"]


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ((1, 0, None), []),
        ((3, 0, None), ["each of them:"]),
        ((3, 1, "prefill"), ["1 engine for long prompts:"]),
        ((3, 1, "decode"), ["2 engines for outputs, each of them:"]),
    ],
)
def test_engines_that_are_planned_alike(given, lines):
    assert list(role_lines(*given)) == lines
