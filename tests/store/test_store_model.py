"""Random pulls, copies and removals against a plain dictionary of what the store must then hold."""

from __future__ import annotations

import shutil

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.core.errors import ConfigError, ModelLoadError
from quire.store.hub import find_model
from quire.store.manifests import Preset
from quire.store.store import Store
from tests.store.hub_stand_in import HubStandIn, serving

PULLED = {"org/a:Q4_0": "a-Q4_0.gguf", "org/a:Q8_0": "a-Q8_0.gguf", "org/b:Q4_0": "b-Q4_0.gguf"}
SIZES = {"a-Q4_0.gguf": 100, "a-Q8_0.gguf": 200, "b-Q4_0.gguf": 300}
REPOSITORIES = {
    "org/a": {name: b"G" * size for name, size in SIZES.items() if name.startswith("a")},
    "org/b": {name: b"G" * size for name, size in SIZES.items() if name.startswith("b")},
}
MADE = ("one", "two")
pulled, made = st.sampled_from(sorted(PULLED)), st.sampled_from(MADE)
STEPS = st.one_of(
    st.tuples(st.just("pull"), pulled, st.none()),
    st.tuples(st.just("rm"), st.sampled_from([*PULLED, *MADE]), st.none()),
    st.tuples(st.sampled_from(["copy", "create"]), st.sampled_from([*PULLED, *MADE]), made),
)


def step(names: dict[str, str], present: set[str], operation: str, name: str, new: str) -> None:
    """Do one thing, to the store and to ``names`` (name to what it stands for)."""
    store = Store()
    target = names.get(name, name if name in PULLED else "")
    if operation == "pull":
        store.pull(name, on_progress=lambda step: None)
        names[name] = name
        present.add(name)
    elif operation == "rm":
        found = name in names or name in present
        try:
            removed = store.remove(name)
        except ConfigError:
            assert not found
            return
        assert found
        names.pop(name, None)
        sharing = {other for other, model in names.items() if model == target}
        goes = target in present and not sharing
        assert removed.freed_bytes == (SIZES[PULLED[target]] if goes else 0)
        assert set(removed.shared_with) == (sharing if target in present else set())
        if goes:
            present.discard(target)
    else:
        try:
            if operation == "copy":
                store.copy(name, new)
            else:
                store.create(new, name, Preset(system=name))
        except ModelLoadError:
            assert not target
            return
        names[new] = target


@given(steps=st.lists(STEPS, max_size=12))
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_store_holds_what_was_done_to_it(steps, hub_of, tmp_path):
    for folder in ("hub", "quire"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
    names: dict[str, str] = {}
    present: set[str] = set()
    with serving(HubStandIn(REPOSITORIES)) as stand_in:
        hub_of(stand_in)
        for operation, name, new in steps:
            step(names, present, operation, name, new)
            listed = {model.name: model for model in Store().list()[2:]}
            assert {name: model.manifest.model for name, model in listed.items()} == names
            for name, model in listed.items():
                assert (model.path is not None) == (names[name] in present), model.problem
                assert bool(model.problem) == (names[name] not in present)
            assert {name for name in PULLED if find_model(name) is not None} == present
        blobs = [path for path in (tmp_path / "hub").rglob("blobs/*") if path.is_file()]
        assert sorted(path.stat().st_size for path in blobs) == sorted(
            SIZES[PULLED[name]] for name in present
        )
