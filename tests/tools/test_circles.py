"""The table of circles names functions and files that are there."""

from __future__ import annotations

import pytest
from hypothesis.internal.conjecture import providers

from tests.circles import OF_MODELS, ONLY_IN_CIRCLE_3, WHOLE
from tests.durations import ROOT
from tests.sizes import sized


@pytest.mark.parametrize("name", OF_MODELS)
def test_a_function_of_models_is_there_with_its_parameter(name):
    path, _, function = name.partition("::")
    _, _, after = (ROOT / path).read_text().partition(f"def {function}(")
    assert OF_MODELS[name] in after.partition(")")[0]


@pytest.mark.parametrize("name", [*WHOLE, *ONLY_IN_CIRCLE_3])
def test_a_file_that_is_named_is_there(name):
    assert (ROOT / name).is_file()


def test_fixed_examples_depend_on_no_module_that_was_imported():
    if sized(True, False):
        assert len(providers._get_local_constants()) == 0
