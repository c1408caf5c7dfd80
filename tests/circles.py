"""Which circle runs what: the one table that says so, and the pytest plugin that follows it.

A test lives in the innermost circle that can catch its fault:

0. ``scripts/test --changed``: the files of tests whose imports reach what changed.
1. ``make test``: every function. The rows of its parameters are a covering array
   (``tests/covering.py``), of models there are three, repeated things are repeated twice, and
   hypothesis tries the same examples each time.
2. ``.ci/run``: circle 1, and what needs an environment of its own: the core install, clients,
   sanitizers, and the ARM and Ray runs where their code has changed.
3. ``scripts/test --all``: all rows, examples at random, faults fifty times, what the embedded
   models are made of.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from tests.covering import cover

#: Random models that stand for all in the small circles: the plain one, latents, and experts.
MODELS = {
    *("tiny-llama", "tiny-deepseek", "tiny-mixtral"),
    *("llama", "deepseek-v2", "mixtral"),
}
#: Functions that are not about a model's own files and layers, by the parameter that names it.
OF_MODELS = {
    "tests/integration/test_random_loads.py::test_every_request_ends_as_it_would_alone": "family",
    "tests/integration/test_speculation_draft.py::test_a_draft_of_each_family": "family",
    "tests/models/test_decoder.py::test_chunks_and_company_change_nothing": "name",
    "tests/models/test_stages.py::test_a_stage_takes_the_bytes_that_are_expected": "name",
    "tests/models/test_weight_bytes.py::test_of_sizes_that_are_no_whole_panels": "name",
}
#: Files, or functions, for which all rows are the promise: every model in the lattice of equal
#: tokens, against the reference, and on ranks.
WHOLE = (
    "tests/integration/test_equality.py",
    "tests/integration/test_reference.py",
    "tests/integration/test_ranks.py",
)
#: Files that circle 3 alone runs: they judge what the embedded models were trained on.
ONLY_IN_CIRCLE_3 = ("tests/tools/test_held_out.py",)
#: Parameters that are wanted once a value, in no pairs: what a row means is the same on each. With
#: a drafter how a request draws its tokens is the model's own business, whatever else is set.
UNPAIRED = frozenset({"isa", "threads", "sampling"})

#: Neither an example nor the making of one is slow by itself; the machine may be.
_UNTIMED: dict[str, Any] = {
    "database": None,
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("fixed", derandomize=True, **_UNTIMED)
hypothesis.settings.register_profile("random", print_blob=True, **_UNTIMED)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say how much is run."""
    parser.addoption(
        "--all", action="store_true", help="circle 3: all rows of parameters, examples at random"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose hypothesis' examples: fixed, so that a red run means a change that broke something."""
    if config.getoption("--all"):
        hypothesis.settings.load_profile("random")
        return
    hypothesis.settings.load_profile("fixed")
    # It draws from the constants of all modules that are there, which other tests have imported.
    providers.is_local_module_file = lambda file: False


def _reduced(name: str, items: list[pytest.Function]) -> list[pytest.Function]:
    """Return the rows of a function that the small circles run."""
    if len(items) < 2 or name.startswith(WHOLE):
        return items
    if parameter := OF_MODELS.get(name):
        items = [item for item in items if item.callspec.params[parameter] in MODELS]
    return [items[n] for n in cover(name, [item.callspec.params for item in items], UNPAIRED)]


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the files and rows that only circle 3 runs."""
    whole = {item for item in items if item.nodeid.startswith(ONLY_IN_CIRCLE_3)}
    functions: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for name, rows in functions.items() for item in _reduced(name, rows)}
    return whole | {item for rows in functions.values() for item in rows} - kept


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Leave out rows, after others have left out what was not asked for."""
    yield
    if not config.getoption("--all"):
        left_out = _left_out(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
