"""Several models in one server: what happens to one is no other's business."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire import LLM, SamplingParams
from tests.robustness.conftest import PATH, wait_for
from tests.servers import start_server
from tests.sizes import sized
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Of each model, so that its answers are known.
BODY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, device):
    """Three models whose answers differ."""
    made = []
    for seed, name in enumerate(("one", "two", "three")):
        folder = tmp_path_factory.mktemp("models") / name
        random_checkpoint(folder, PRESETS["tiny-llama"], seed=seed)
        made.append(folder)
    return made


@pytest.fixture(scope="module")
def limits(device):
    """Flags of all servers here."""
    return ["--device", device, "--threads", "1", "--max-num-seqs", "4"]


@pytest.fixture
def serve(folders, limits):
    """Starts a server of some of the models."""
    running = []

    def start(*names, flags=()):
        paths = [str(folder) for folder in folders if folder.name in names]
        running.append(start_server([*paths, *limits, *flags]))
        return running[-1]

    yield start
    for process in running:
        process.__exit__()


@pytest.fixture(scope="module")
def pair(folders, limits):
    """A server of two models, of which the second has three times the cores of the first."""
    flags = ["--memory", "512MiB", "--core-weight", "two=3"]
    with start_server([*map(str, folders[:2]), *limits, *flags]) as server:
        server.wait_ready()
        yield server
        assert server.end() == 0


def ask(url, model, **fields):
    return httpx2.post(f"{url}{PATH}", json={**BODY, "model": model, **fields}, timeout=240)


def text(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


@pytest.fixture(scope="module")
def texts(folders, device):
    """What each model answers when it is alone."""
    found = {}
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    for folder in folders:
        with LLM(str(folder), device=device, memory=48 << 20, threads=1) as llm:
            found[folder.name] = llm.generate(BODY["prompt"], params)[0].outputs[0].text
    assert len(set(found.values())) == 3
    return found


def test_requests_choose_by_name(pair, texts):
    url = pair.address
    for name in ("one", "two"):
        assert text(ask(url, name)) == texts[name]
    assert text(ask(url, None)) == texts["one"], "the first is the default"
    missing = ask(url, "three")
    assert missing.status_code == 404 and "three" in missing.text
    listed = httpx2.get(f"{url}/v1/models").json()["data"]
    assert [card["id"] for card in listed] == ["one", "two"]
    lines = httpx2.get(f"{url}/metrics").text.splitlines()
    for name in ("one", "two"):
        assert any(f'model_name="{name}"' in line for line in lines)
    helps = [line for line in lines if line.startswith("# HELP")]
    assert len(helps) == len(set(helps)), "a family is written once, whatever has it"


def test_a_killed_engine_is_no_business_of_the_other(pair, texts):
    url = pair.address
    first, second = pair.engines()
    with ThreadPoolExecutor(2) as pool:
        second.suspend()  # it would be done by then if the machine stalled this process
        lost = pool.submit(ask, url, "two", max_tokens=1900)
        wait_for(lambda: httpx2.get(f"{url}/health/progress").json()["pending"])
        long = pool.submit(ask, url, "one", max_tokens=1500)
        second.kill()
        assert lost.result().status_code in (500, 503), lost.result().text
        assert long.result().status_code == 200
    assert first.is_running()
    end = time.monotonic() + 60
    while ask(url, "two").status_code != 200 and time.monotonic() < end:
        assert text(ask(url, "one")) == texts["one"]
    assert text(ask(url, "two")) == texts["two"]


def counters(url):
    """The values of all counters and histograms, by series, and the names of models with gauges."""
    families = list(text_string_to_metric_families(httpx2.get(f"{url}/metrics").text))
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if family.type != "gauge"
    }
    loaded = (f.samples for f in families if f.name == "quire:model_load_progress_perc")
    return found, {sample.labels["model_name"] for samples in loaded for sample in samples}


def test_counters_go_on_after_an_unload_and_a_load(serve):
    """They vanished with the model and began again at zero."""
    flags = ["--memory", "200MiB", "--load-on-demand", "--load-wait", "60"]
    server = serve("one", "two", flags=flags)
    url = server.wait_ready()
    assert counters(url)[1] == set()
    before, tokens = {}, ("quire:generation_tokens_total", ("engine", "0"), ("model_name", "one"))
    for number, name in enumerate(("one", "two", "one", "two", "one")):
        text(ask(url, name))
        if number == 2:  # also when the engine starts again meanwhile
            server.engine().kill()
            while ask(url, name).status_code != 200:
                time.sleep(0.1)
        now, loaded = counters(url)
        assert loaded == {name}, "gauges are of models that are loaded"
        fallen = [series for series, value in before.items() if now.get(series, -1) < value]
        assert fallen == []
        before = now
    assert before[tokens] == 4 * 24
    told = [value for series, value in before.items() if series[0].endswith("restarts_total")]
    assert sorted(told) == [0, 1]
    assert server.end() == 0


def test_models_that_do_not_fit_together_are_refused_at_the_start(serve):
    server = serve("one", "two", "three", flags=["--memory", "256MiB"])
    assert server.popen.wait(60) == 1
    server.end()
    assert "must fit in 256 MiB" in server.stderr
    assert "--load-on-demand" in server.stderr


def test_a_model_that_needs_more_than_half_gets_what_it_needs(tmp_path, device):
    """It got a few bytes less, and its load was refused."""
    random_checkpoint(tmp_path / "large", PRESETS["tiny-llama"], dtype="bfloat16")
    # Without a process's part half of it is nothing.
    flags = ["--device", device, "--memory", "200MiB", "--load-on-demand"]
    flags += ["--threads", "1", "--max-num-seqs", "4", "--max-model-len", "2048"]
    with start_server([str(tmp_path / "large"), *flags]) as server:
        text(ask(server.wait_ready(), "large"))
        assert server.end() == 0


def test_two_models_of_one_name_are_refused_at_the_start(serve, folders):
    server = serve("one", flags=[str(folders[0]), "--memory", "512MiB"])
    assert server.popen.wait(60) == 1
    server.end()
    assert "must have different names; got one twice" in server.stderr


def niceness_of(engine):
    found = set()
    for thread in engine.threads():
        with suppress(ProcessLookupError):  # it has ended
            found.add(os.getpriority(os.PRIO_PROCESS, thread.id))
    return found


def test_cores_are_divided_by_weight(pair):
    url = pair.address
    for name in ("one", "two"):
        text(ask(url, name))
    niceness = [niceness_of(engine) for engine in pair.engines()]
    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness == [{here + 5}, {here}], "all threads of an engine"
    pair.engines()[0].kill()
    end = time.monotonic() + 60
    while ask(url, "one").status_code != 200 and time.monotonic() < end:
        time.sleep(0.1)
    assert {engine.nice() for engine in pair.engines()} == {here, here + 5}


def test_a_weight_of_no_model_is_refused_at_the_start(serve):
    server = serve("one", "two", flags=["--core-weight", "three=2"])
    assert server.popen.wait(60) == 1
    server.end()
    assert "must name a model of this server (one, two); got three" in server.stderr


def test_a_model_is_loaded_before_it_is_asked_for_and_goes_as_others_do(serve, texts):
    # For longer than the machine may stall who looks whether it is there.
    flags = ["--memory", "512MiB", "--load-on-demand", "--keep-alive", "4", "--load-wait", "60"]
    server = serve("one", "two", flags=[*flags, "--preload", "two", "--preload", "none"])
    url = server.wait_ready()

    def states():
        return [model["status"]["value"] for model in httpx2.get(f"{url}/models").json()["data"]]

    assert states()[:2] == ["absent", "ready"]
    assert "--preload none: no model has that name yet" in server.stderr
    assert text(ask(url, "two")) == texts["two"]
    end = time.monotonic() + 60
    while states()[1] != "absent" and time.monotonic() < end:
        time.sleep(0.1)
    assert not server.engines()
    assert text(ask(url, "two")) == texts["two"]
    assert server.end() == 0


def test_a_preloaded_model_that_cannot_be_loaded_says_why_to_who_asks(serve, folders, tmp_path):
    """What a start can tell from settings and shapes it refuses; a missing tensor it cannot."""
    broken = shutil.copytree(folders[0], tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b"model.norm.weight", b"model.nrom.weight", 1))
    flags = ["--memory", "420MiB", "--load-on-demand", "--preload", "broken"]
    url = serve("two", flags=[str(broken), *flags]).wait_ready()
    refused = ask(url, "broken")
    assert refused.status_code == 503, refused.text
    assert "[models] broken cannot be loaded" in refused.text


def test_preload_is_for_models_that_come_and_go(serve):
    server = serve("one", "two", flags=["--preload", "one"])
    assert server.popen.wait(60) == 1
    server.end()
    assert "--preload must come with --load-on-demand" in server.stderr


def test_probes_load_nothing(serve, texts):
    url = serve("one", "two", flags=["--memory", "512MiB", "--load-on-demand"]).wait_ready()
    ready = f"{url}/v2/models/two/ready"
    assert httpx2.get(ready).status_code == 503
    assert httpx2.get(f"{url}/v2/models/two").status_code == 200
    assert httpx2.get(f"{url}/v2/models/three/ready").status_code == 404
    for path in (
        "/health?model=two",
        "/slots?model=two",
        "/info",
        "/debug/kv_cache?model=two",
    ):
        assert "is absent" in httpx2.get(url + path).text, path
    assert httpx2.get(f"{url}/props?model=two").json()["is_sleeping"] is True
    assert httpx2.get(f"{url}/props?model=three").status_code == 404
    listed = httpx2.get(f"{url}/models").json()["data"]
    assert [model["id"] for model in listed][:2] == ["one", "two"]
    assert {model["status"]["value"] for model in listed} == {"absent"}, "the store's as well"
    assert text(ask(url, "two")) == texts["two"]
    assert httpx2.get(ready).status_code == 200
    assert httpx2.get(f"{url}/health?model=two").status_code == 200
    assert httpx2.get(f"{url}/health?model=one").status_code == 503
    assert httpx2.get(f"{url}/health").status_code == 200
    assert httpx2.get(f"{url}/props?model=two").json()["model_alias"] == "two"


def test_any_order_of_requests_and_kills(serve, texts, times):
    """Two of three fit; each request gets its own model's answer, or a refusal that says why."""
    flags = ["--memory", "420MiB", "--load-on-demand", "--keep-alive", "1", "--load-wait", "60"]
    server = serve("one", "two", "three", flags=flags)
    url = server.wait_ready()
    answered, killed, refused, clients_left = 0, 0, [], threading.Event()

    def request(name):
        nonlocal answered
        answer = ask(url, name)
        if answer.status_code == 200:
            assert text(answer) == texts[name], name
            answered += 1
        else:
            assert answer.status_code == 503, answer.text
            refused.append(answer.json()["error"]["message"])
            time.sleep(0.5)

    def client(seed):
        rng, left = random.Random(seed), sized(2, 4) * times
        while left > 0 or not killed:  # or the test shows nothing
            left -= 1
            request(rng.choice(list(texts)))
            time.sleep(rng.choice((0, 0, 0.1, 0.5)))

    def kill():
        nonlocal killed
        rng, answered_before = random.Random(7), 0
        while not clients_left.wait(sized(2, 3)):
            if answered < answered_before + 7:  # six at most are refused by one kill
                continue
            answered_before = answered
            with suppress(IndexError, psutil.Error):
                rng.choice(server.engines()).kill()
                killed += 1
            assert len(server.engines()) <= 3

    with ThreadPoolExecutor(7) as pool:
        killing = pool.submit(kill)
        for one in [pool.submit(client, seed) for seed in range(6)]:
            one.result()
        clients_left.set()
        killing.result()
    assert answered > len(refused), refused
    assert all("[" in reason or "died" in reason for reason in refused), refused
    end = time.monotonic() + 60
    while server.engines() and time.monotonic() < end:
        time.sleep(0.1)
    assert not server.engines(), "idle models go"
    assert server.end() == 0
    assert "Traceback" not in server.stderr
