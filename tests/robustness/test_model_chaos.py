"""Models loaded, unloaded, pulled, removed and killed at random; see ``scripts/model_chaos``."""

from __future__ import annotations

from benchmarks.robustness import model_chaos
from tests.preforked import Preforked
from tests.sizes import sized


def test_any_order_of_operations_on_models(device, tmp_path, times):
    with model_chaos.site(tmp_path, ("--device", device), Preforked) as place:
        num_asked = sized(2, len(model_chaos.WAYS))  # of six models: every way was taken
        outcome = model_chaos.run(
            place, sized(14, 20) * times, num_parts=2, num_asked=num_asked, seed=7
        )
    assert outcome["wrong"] == []
    # Something of everything, or the test shows nothing.
    happened = outcome["outcomes"].keys()
    assert happened >= {"request: 200", "kill_engine: killed", "pull: 200", "create: 200"}, outcome
    assert outcome["most_models_in_memory"] == 2, "as many as fit"


def test_what_is_left_in_a_store_is_found(tmp_path):
    blobs = tmp_path / "hub/models--org--one/blobs"
    blobs.mkdir(parents=True)
    (tmp_path / "hub/.locks").mkdir()
    for path in (blobs / "a.quire.incomplete", tmp_path / "hub/.locks/a.lock"):
        path.touch()
    assert len(model_chaos.left_in_store(tmp_path)) == 1
