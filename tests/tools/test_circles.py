"""The table of circles names functions and files that are there."""

from __future__ import annotations

import pytest

from tests.circles import OF_MODELS, WHOLE
from tests.durations import ROOT


@pytest.mark.parametrize("name", OF_MODELS)
def test_a_function_of_models_is_there_with_its_parameter(name):
    path, _, function = name.partition("::")
    _, _, after = (ROOT / path).read_text().partition(f"def {function}(")
    assert OF_MODELS[name] in after.partition(")")[0]


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_whose_rows_are_all_run_is_there(name):
    assert (ROOT / name).is_file()
