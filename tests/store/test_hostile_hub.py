"""Pulls from a hub that is broken or lies: a clear error, nothing half visible, then healed."""

import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import httpx2
import pytest

from quire.checkpoints.embedded import LISTED
from quire.core.errors import ConfigError, ModelLoadError
from quire.store import hub_download, hub_listing
from quire.store.hub import find_model
from quire.store.pull_progress import PullCancelled
from quire.store.store import Store
from tests.commands import run_quire
from tests.preforked import Preforked
from tests.store.hub_stand_in import HubStandIn, serving

DATA = b"GGUF" + bytes(range(256)) * 2000
MODEL = "org/one:only"
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def served(hub_of):
    with serving(HubStandIn({"org/one": {"only.gguf": DATA}})) as stand_in:
        yield hub_of(stand_in)


def visible(tmp_path):
    """Return the names of what a program finds in the caches."""
    links = list((tmp_path / "hub").rglob("snapshots/*/*"))
    blobs = [p for p in (tmp_path / "hub").rglob("blobs/*") if not p.name.endswith("incomplete")]
    manifests = list((tmp_path / "quire").rglob("store/*"))
    return [path.name for path in (*links, *blobs, *manifests)]


def partial(tmp_path):
    return [path.stat().st_size for path in (tmp_path / "hub").rglob(f"*{hub_download.PARTIAL}")]


def pull(served, steps=None):
    return Store().pull(MODEL, on_progress=steps.append if steps is not None else lambda s: None)


def ranges(served):
    return [asked for method, path, asked in served.requests if method == "GET" and "cdn" in path]


def check_healed(served, tmp_path):
    """Pull once more, from a hub that is well again."""
    path = pull(served)
    assert path.read_bytes() == DATA
    assert partial(tmp_path) == []
    assert Store().find(MODEL).problem == ""


def test_steps_are_those_of_a_pull(served):
    steps = []
    path = pull(served, steps)
    assert path.read_bytes() == DATA and path.is_symlink()
    assert path.resolve().name == SHA256
    words = list(dict.fromkeys(step.status for step in steps))
    assert words == [
        "pulling manifest", f"pulling {SHA256[:12]}", "verifying sha256 digest",
        "writing manifest", "success",
    ]  # fmt: skip
    counted = [step.completed for step in steps if step.digest]
    assert counted == sorted(counted) and counted[0] == 0 and counted[-1] == len(DATA)
    assert {step.digest for step in steps if step.total} == {f"sha256:{SHA256}"}


def test_a_connection_cut_again_and_again_is_taken_up_where_it_ended(served, tmp_path):
    steps = []

    def cut_once_more(step):
        if step.completed < 400_000:
            served.cuts["only.gguf"] = 100_000
        steps.append(step)

    path = Store().pull(MODEL, on_progress=cut_once_more)
    assert path.read_bytes() == DATA
    asked = ranges(served)
    assert len(asked) > 2 and asked[0] is None
    begins = [int(text.removeprefix("bytes=").rstrip("-")) for text in asked[1:]]
    assert begins == sorted(set(begins))


def test_a_pull_that_was_given_up_resumes_in_the_next_one(served, tmp_path):
    def give_up(step):
        if step.completed > 100_000:
            raise PullCancelled("[pull] the caller gave up.")

    with pytest.raises(PullCancelled):
        Store().pull(MODEL, on_progress=give_up)
    assert visible(tmp_path) == [] and find_model(MODEL) is None
    (size,) = partial(tmp_path)
    assert 100_000 < size < len(DATA)
    served.requests.clear()
    check_healed(served, tmp_path)
    assert ranges(served) == [f"bytes={size}-"]


def test_more_than_the_whole_file_that_a_pull_left_is_started_over(served, tmp_path):
    part = tmp_path / f"hub/models--org--one/blobs/{SHA256}{hub_download.PARTIAL}"
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA + b"!")
    check_healed(served, tmp_path)


def test_what_a_pull_left_that_was_given_up_can_be_removed(served, tmp_path):
    served.bodies["only.gguf"] = DATA[:1000]
    with pytest.raises(ModelLoadError, match="What came is kept"):
        pull(served)
    listed = run_quire("list", **served.settings(tmp_path))
    assert "org/one: 0.0 MB of a pull that was given up" in listed.stdout, listed.stderr
    assert Store().remove(MODEL).freed_bytes == 1000 and partial(tmp_path) == []
    with pytest.raises(ConfigError, match="one that quire list shows"):
        Store().remove(MODEL)


def test_a_pull_under_way_is_not_taken_for_one_given_up(served, tmp_path):
    """Removing the name deleted its file, and the pull failed at its end."""
    seen = []

    def look(step):
        if 100_000 < step.completed < len(DATA) and not seen:
            seen.append(hub_download.unfinished())
            with pytest.raises(ConfigError, match="one that quire list shows"):
                Store().remove(MODEL)

    served.cuts["only.gguf"] = 200_000
    assert Store().pull(MODEL, on_progress=look).read_bytes() == DATA
    assert seen == [[]]


def test_a_server_that_knows_no_ranges_sends_what_is_there_once_more(served, tmp_path):
    served.wholes.add("only.gguf")
    served.cuts["only.gguf"] = 200_000
    assert pull(served).read_bytes() == DATA
    assert len(ranges(served)) == 2 and partial(tmp_path) == []


def test_bytes_that_are_encoded_are_refused(served, tmp_path):
    """A few of them may stand for gigabytes."""
    served.encodings["only.gguf"] = "gzip"
    with pytest.raises(ModelLoadError, match="encoding gzip"):
        pull(served)
    assert visible(tmp_path) == []
    served.encodings.clear()
    check_healed(served, tmp_path)


def test_a_redirect_from_https_to_http_is_refused():
    response = httpx2.Response(200, request=httpx2.Request("GET", "http://elsewhere/file"))
    wanted = hub_download.HubFile("org/one", None, "only.gguf")
    remote = hub_download._Remote(wanted, "https://hub/org/one/file", SHA256, 9)
    with pytest.raises(ModelLoadError, match="must come over https; got a redirect to http://else"):
        hub_download._first_byte(response, remote, 0)


def test_a_hub_that_is_busy_is_asked_again(served):
    served.statuses["only.gguf"] = [503, 500, 429]
    assert pull(served).read_bytes() == DATA


def test_a_hub_that_stays_busy_is_an_error(served, tmp_path):
    served.statuses["only.gguf"] = [500] * 99
    with pytest.raises(ModelLoadError, match=r"5 times less than 64.0 KiB \(HTTP status 500"):
        pull(served)
    assert visible(tmp_path) == []
    served.statuses.clear()
    check_healed(served, tmp_path)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_hub_that_refuses_is_an_error_at_once(status, served, tmp_path):
    served.statuses["only.gguf"] = [status] * 99
    with pytest.raises(ModelLoadError, match=r"got org/one:only: .*Check the id"):
        pull(served)
    assert len(ranges(served)) == 1 and visible(tmp_path) == []
    served.statuses.clear()
    check_healed(served, tmp_path)


def test_other_bytes_of_the_same_length_are_refused(served, tmp_path):
    served.bodies["only.gguf"] = DATA[::-1]
    with pytest.raises(ModelLoadError, match=f"must have SHA-256 {SHA256}; got .* Nothing was"):
        pull(served)
    assert visible(tmp_path) == [] and partial(tmp_path) == []
    served.bodies.clear()
    check_healed(served, tmp_path)


@pytest.mark.parametrize("how", ["longer", "endless"])
def test_a_body_beyond_its_size_is_given_up(how, served, tmp_path):
    if how == "longer":
        served.bodies["only.gguf"] = DATA + b"!"
    else:
        served.endless.add("only.gguf")
    with pytest.raises(ModelLoadError, match=f"must have {len(DATA):,} bytes, as was announced"):
        pull(served)
    assert visible(tmp_path) == [] and partial(tmp_path) == []
    served.bodies.clear()
    served.endless.clear()
    check_healed(served, tmp_path)


def test_a_body_that_always_ends_too_early_is_an_error(served, tmp_path):
    served.bodies["only.gguf"] = DATA[:1000]
    with pytest.raises(ModelLoadError, match="got 1,000 of 512,004 bytes, the last 5 times less"):
        pull(served)
    assert visible(tmp_path) == [] and partial(tmp_path) == [1000]
    served.bodies.clear()
    check_healed(served, tmp_path)


def test_a_redirect_in_a_circle_ends(served, tmp_path):
    served.loops.add("only.gguf")
    with pytest.raises(ModelLoadError, match="[Rr]edirect"):
        pull(served)
    assert visible(tmp_path) == [] and len(ranges(served)) < 50
    served.loops.clear()
    check_healed(served, tmp_path)


def test_a_redirect_to_another_host_gets_no_token(served, monkeypatch):
    """The stand-in sends from localhost what 127.0.0.1 was asked for."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull(served)
    sent = {path: value for path, value in served.tokens.items() if value}
    assert any("/resolve/" in path for path in sent)
    assert not any("/cdn/" in path for path in sent)


@pytest.mark.parametrize("etag", ["../../../../evil", "", "a/b", "x" * 300])
def test_a_hash_that_would_be_a_path_is_refused(etag, served, tmp_path):
    served.etags["only.gguf"] = etag
    with pytest.raises(ModelLoadError, match="the hub must say the hash and the size"):
        pull(served)
    assert visible(tmp_path) == []
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("name", ["../own.jinja", "chat_template/../../own.jinja", "/own.jinja"])
def test_a_file_outside_of_its_repository_is_refused(name, served, tmp_path):
    served.repositories["org/two"] = {"config.json": b"{}", name: b"{{ x }}"}
    with pytest.raises(ModelLoadError, match=r"a file of org/two must lie in it; got .*own\.jinja"):
        Store().pull("org/two", on_progress=lambda step: None)
    assert not any("own.jinja" in path for _, path, _ in served.requests)


@pytest.mark.parametrize(
    ("listing", "num_listed", "rule"),
    [
        ((b'{"siblings": [' + b'{"rfilename": "a"}, ' * 500, 0.0), 0, "have <= 0 MiB; got more"),
        ((b" ", 0.01), 0, "come within 0.2 s"),
        (None, 501, "name <= 500 files; got 502"),
    ],
)
def test_a_list_of_files_has_bounds(
    served, tmp_path, monkeypatch, hub_of, listing, num_listed, rule
):
    """An endless one took 3.0 GiB, a slow one for ever, and it was told as a hub out of reach."""
    monkeypatch.setattr(hub_listing, "MAX_BYTES", 100_000)
    monkeypatch.setattr(hub_listing, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(hub_listing, "MAX_FILES", 500)
    with serving(HubStandIn({"org/one": {"only.gguf": DATA}}, listing=listing)) as hub:
        hub.num_listed = num_listed
        hub_of(hub)
        with pytest.raises(ModelLoadError, match=f"list of the files of org/one must {rule}"):
            pull(served)
    assert visible(tmp_path) == []


def test_a_configuration_as_large_as_weights_is_not_fetched(tmp_path, hub_of):
    files = {"config.json": b"{}", "model.safetensors": DATA}
    with serving(HubStandIn({"org/one": files}, sizes={"config.json": 2**40})) as hub:
        hub_of(hub)
        with pytest.raises(ModelLoadError, match="config.json of org/one must have <= 128 MiB"):
            Store().pull("org/one")
    assert visible(tmp_path) == []


def test_a_hub_that_sends_a_little_now_and_then_is_an_error(served, tmp_path, monkeypatch):
    """Each byte began the time anew that a read may take: a pull had no end."""
    monkeypatch.setattr(hub_download, "SLOW_SECONDS", 0.05)
    served.pause = 0.005
    with pytest.raises(ModelLoadError, match=r"must come at 64.0 KiB in 0.05 s or faster; got"):
        pull(served)
    assert visible(tmp_path) == [] and 0 < partial(tmp_path)[0] < len(DATA)


def test_connections_that_bring_a_little_each_are_an_error(served, tmp_path):
    """Each connection that brought a byte began the count of attempts anew."""
    served.bodies["only.gguf"] = DATA
    with pytest.raises(ModelLoadError, match="the last 5 times less than 64.0 KiB"):
        Store().pull(MODEL, on_progress=lambda step: served.cuts.update({"only.gguf": 100}))
    assert len(ranges(served)) == hub_download.MAX_FRUITLESS + 1


def test_a_slow_hub_can_be_given_up(served, tmp_path):
    served.pause = 0.01
    seen = []

    def give_up(step):
        seen.append(step.completed)
        if step.completed > 3000:
            raise PullCancelled("[pull] too slow.")

    with pytest.raises(PullCancelled):
        Store().pull(MODEL, on_progress=give_up)
    assert seen[-1] < 100_000 and visible(tmp_path) == []
    served.pause = 0
    check_healed(served, tmp_path)


def test_two_pulls_at_once_fetch_a_file_once(served, tmp_path):
    served.pause = 0.0005
    paths, steps = [], []
    threads = [
        threading.Thread(target=lambda: paths.append(Store().pull(MODEL, on_progress=steps.append)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == DATA for path in paths] == [True] * 3
    assert len(ranges(served)) == 1


def test_a_file_changed_on_the_disk_is_told_of_and_fetched_again(served, tmp_path):
    blob = pull(served).resolve()
    blob.write_bytes(DATA[:-1])
    assert "was changed: pull it again" in Store().find(MODEL).problem
    check_healed(served, tmp_path)
    blob.write_bytes(DATA[::-1])
    check_healed(served, tmp_path)
    blob.unlink()
    assert "quire pull" in Store().find(MODEL).problem
    check_healed(served, tmp_path)


FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": {}}' * 100,
    "model-00001-of-00002.safetensors": b"1" * 5000,
    "model-00002-of-00002.safetensors": b"2" * 5000,
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors",'
    b' "b": "model-00002-of-00002.safetensors"}}',
}


@pytest.mark.parametrize("broken", FOLDER)
@pytest.mark.parametrize("how", ["ends", "longer", "refused"])
def test_a_folder_that_lacks_one_file_is_not_there(broken, how, hub_of):
    """Files of a folder have no hash that could be compared, but a size."""
    with serving(HubStandIn({"org/folder": FOLDER})) as stand_in:
        hub_of(stand_in)
        if how == "refused":
            stand_in.statuses[broken] = [403] * 99
        else:
            stand_in.bodies[broken] = FOLDER[broken][:-1] if how == "ends" else b"!" * 6000
        with pytest.raises(ModelLoadError):
            Store().pull("org/folder", on_progress=lambda step: None)
        assert find_model("org/folder") is None and len(Store().list()) == len(LISTED)
        stand_in.statuses.clear()
        stand_in.bodies.clear()
        folder = Store().pull("org/folder", on_progress=lambda step: None)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == FOLDER
        assert find_model("org/folder") == folder


def command(*arguments):
    return [sys.executable, "-m", "quire.cli.main", *arguments]


def environment(served, tmp_path):
    return os.environ | served.settings(tmp_path)


def test_a_pull_that_was_killed_leaves_nothing_half_visible(served, tmp_path):
    served.pause = 0.02
    process = Preforked(command("pull", MODEL), env=environment(served, tmp_path))
    try:
        deadline = time.monotonic() + 60
        while not any(partial(tmp_path)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert visible(tmp_path) == [] and find_model(MODEL) is None
    (size,) = partial(tmp_path)
    assert 0 < size < len(DATA)
    served.pause = 0
    served.requests.clear()
    check_healed(served, tmp_path)
    assert ranges(served) == [f"bytes={size}-"]


def test_a_full_disk_is_an_error_that_says_so(served, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = subprocess.run(
        command("pull", MODEL), env=environment(served, tmp_path), preexec_fn=limit,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr and "make room and pull again" in done.stderr
    assert visible(tmp_path) == []
    check_healed(served, tmp_path)


def test_a_file_larger_than_the_disk_is_not_begun(served, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_download.shutil, "disk_usage", lambda path: type("U", (), {"free": 9}))
    with pytest.raises(ModelLoadError, match="500 KiB to come and 9 B free"):
        pull(served)
    assert visible(tmp_path) == [] and ranges(served) == []
