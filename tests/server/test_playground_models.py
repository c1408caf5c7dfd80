"""The page's views of models: their list, pulls, and two models side by side, in a real browser."""

from __future__ import annotations

import threading
import time

import httpx2
import pytest

from quire.server.access.authentication import ApiKey
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from quire.store.pull_progress import PullProgress
from quire.store.store import Store
from tests.robustness.conftest import wait_for
from tests.server.browser import ENTER, ESCAPE
from tests.server.chat_page import Page
from tests.server.conftest import run_in_thread
from tests.servers import start_server
from tests.store.hub_stand_in import HubStandIn, serving
from tools.random_checkpoint import PRESETS, random_checkpoint

PULLED = "org/tiny:Q8_0"

#: Texts of less contrast than WCAG's AA asks for, and controls without a name.
HARD_TO_USE = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const linear = (part) => part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const below = (node) => {
  for (; node; node = node.parentElement) {
    const colour = rgba(getComputedStyle(node).backgroundColor);
    if (colour[3] === 255) return colour;
  }
};
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const node = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
  const unseen = node.closest(".unseen, noscript, option, :disabled");
  if (!text || unseen || !node.checkVisibility()) continue;
  const colours = [rgba(getComputedStyle(node).color), below(node)].map(light);
  const contrast = (Math.max(...colours) + 0.05) / (Math.min(...colours) + 0.05);
  if (contrast < 4.5) found.push([text, contrast]);
}
for (const control of document.querySelectorAll("button, input, select, textarea, a, progress")) {
  const name = control.ariaLabel || control.textContent.trim() || control.labels?.[0]?.textContent;
  if (control.checkVisibility() && !name) found.push(control.outerHTML);
}
return found;
"""


@pytest.fixture(scope="module")
def hub(gguf):
    """A hub that has quire-tiny as a GGUF file."""
    with serving(HubStandIn({"org/tiny": {"tiny-Q8_0.gguf": gguf}})) as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def server(hub, tmp_path_factory, device):
    """A server of quire-tiny, another model and a damaged one, loaded on demand; its URL."""
    folder = tmp_path_factory.mktemp("models")
    # With a long context: their answers are not over before the page stops them.
    config = {**PRESETS["tiny-llama"], "max_position_embeddings": 1 << 16}
    for name in ("other", "broken"):
        random_checkpoint(folder / name, config)
    flags = ["--load-on-demand", "--memory", "1GiB", "--threads", "1", "--device", device]
    models = ["quire-tiny", str(folder / "other"), str(folder / "broken")]
    with start_server([*models, *flags], **hub.settings(folder)) as process:
        url = process.wait_ready()
        (folder / "broken" / "model.safetensors").write_bytes(b"nothing")
        yield url


@pytest.fixture
def page(chromium, server):
    page = Page(chromium, server)
    page.open()
    page.wait_for("quire-tiny", "#model")
    chromium.complaints()
    yield page
    assert chromium.complaints() == []


def go(page, view):
    page.run(f"document.querySelector('#views [href=\"#{view}\"]').click()")
    page.browser.wait(f"document.querySelector('#{view}-view').checkVisibility()")


def wait_for_state(page, name, state):
    page.browser.wait(
        "[...document.querySelectorAll('#model-list .name')]"
        f".some((row) => row.innerText.split(/\\s*\\n\\s*/).join(' ') === '{name} {state}')"
    )


def test_models_are_listed_loaded_used_and_unloaded(page, server):
    """The first model of the choice was one that is not loaded, next to one that is."""
    go(page, "models")
    wait_for_state(page, "other", "not loaded")
    page.wait_for("kB", "#model-list li:nth-child(2)")
    page.click("Load other")
    wait_for_state(page, "other", "ready")
    page.wait_for("tokens of context", "#model-list li:nth-child(2)")
    models = httpx2.get(f"{server}/models").json()["data"]
    ready = [model["id"] for model in models if model["status"]["value"] == "ready"]
    assert page.run("return document.querySelector('#model option').value") == ready[0]
    page.click("Use other")
    page.set("max_tokens", "4")
    answer = page.ask("Hi")
    assert "other" in answer and "cut off at the token limit" in answer
    go(page, "models")
    page.wait_for("tokens/s", "#model-list li:nth-child(2)")
    page.click("Unload other")
    wait_for_state(page, "other", "not loaded")


def test_an_answer_has_a_limit_unless_the_model_has_its_own(scripted, engine, monkeypatch):
    """An answer that repeated itself ran on to the end of the context."""
    monkeypatch.setattr(engine, "max_model_len", 8192)
    engine.text = "x" * 1500  # a token a character
    shown = scripted.ask("Hi")
    assert "cut off at the token limit" in shown and "Continue" in shown
    assert 1024 <= len(scripted.bodies()[1]) < 1500
    monkeypatch.setitem(engine.default_sampling_params, "max_tokens", 1200)
    scripted.open()
    scripted.click("New chat")
    scripted.ask("Hi")
    assert len(scripted.bodies()[1]) == 1200


def test_a_conversation_remembers_its_model(page):
    chosen = "return document.querySelector('#model').value"
    page.set("max_tokens", "4")
    page.ask("First")
    page.click("New chat")
    # At once, as people do: between the two the page may fill the field again.
    page.run(
        """
        const model = document.querySelector("#model");
        model.value = "other";
        model.dispatchEvent(new Event("change"));
        """
    )
    assert "other" in page.ask("Second")
    page.click("First", "#chat-list")
    assert page.run(chosen) == "quire-tiny"
    page.open()
    page.wait_for("quire-tiny", "#model")
    page.click("Second", "#chat-list")
    assert page.run(chosen) == "other"
    page.run(
        """
        const key = Object.keys(localStorage).find((key) => key.startsWith("quire.chat."));
        for (const key of Object.keys(localStorage)) if (key.startsWith("quire.chat."))
          localStorage[key] = localStorage[key].replaceAll('"model":"other"', '"model":"gone"');
        """
    )
    page.open()
    page.wait_for("gone (not on this server)", "#model")
    assert "does not exist" in page.ask("Third"), "another model is not taken unasked"
    page.browser.complaints()  # of the 404


def test_two_models_answer_one_prompt_side_by_side(page):
    go(page, "compare")
    page.set("logprobs", True)
    page.set("max_tokens", "12")
    page.browser.keys("#compare-text", "What is the capital of France?" + ENTER)
    ends = "/finished|ended by|cut off/"
    ended = f"[...document.querySelectorAll('#columns article')].filter((a) => {ends}"
    page.browser.wait(f"{ended}.test(a.innerText)).length === 2")
    left, right = (
        page.run(f"return document.querySelector('#{side}-answer').innerText")
        for side in ("left", "right")
    )
    assert left.startswith("quire-tiny") and "Paris" in left
    assert right.startswith("other")
    for text in (left, right):
        assert "tokens/s" in text and "first token" in text
    page.browser.hover("#left-answer .token:nth-child(4)")
    page.wait_for("␣France", "#tip .chosen")
    page.set("max_tokens", "1900")  # more than the page asks for by itself
    page.set("temperature", "0")  # else a random model draws its end early now and then
    page.browser.keys("#compare-text", "Tell me a story" + ENTER)
    page.wait_for("tokens/s", "#right-answer")
    page.browser.keys("#compare-text", ESCAPE)
    page.browser.wait("document.querySelector('#compare-stop').hidden")
    page.wait_for("ended by you", "#right-answer")


def test_a_model_is_pulled_stopped_and_gone_on_with(page, hub):
    go(page, "models")
    hub.pause = 0.01
    page.browser.keys("#pull-name", PULLED + ENTER)
    page.wait_for("left", "#pull-list")
    assert page.run("return document.querySelector('#pull-list progress').value > 0")
    page.click(f"Stop pulling {PULLED}")
    page.wait_for("what came is kept", "#pull-list")
    hub.pause = 0
    page.click(f"Pull {PULLED} again")
    page.wait_for("It is in the list below", "#pull-list")
    wait_for_state(page, PULLED, "not loaded")
    page.click(f"Use {PULLED}")
    assert "Paris" in page.ask("What is the capital of France?")


def test_a_pull_goes_on_without_the_page_and_is_found_again(page, hub, server):
    """It ended with the tab."""
    hub.repositories["org/third"] = hub.repositories["org/tiny"]
    go(page, "models")
    hub.pause = 0.01
    page.browser.keys("#pull-name", "org/third" + ENTER)
    page.wait_for("left", "#pull-list")
    page.browser.open("about:blank")
    page.open()
    go(page, "models")
    page.wait_for("left", "#pull-list")
    page.click("Stop pulling org/third")
    page.wait_for("what came is kept", "#pull-list")
    assert "org/third" not in httpx2.get(f"{server}/models").text
    page.click("Pull org/third again")
    page.wait_for("left", "#pull-list")
    page.browser.open("about:blank")
    hub.pause = 0
    wait_for(lambda: "downloading" not in httpx2.get(f"{server}/models").text)  # no page is open
    page.open()
    go(page, "models")
    wait_for_state(page, "org/third", "not loaded")


def test_a_pull_of_another_client_is_shown_and_cannot_be_asked(page, hub, server):
    hub.repositories["org/second"] = hub.repositories["org/tiny"]
    hub.pause = 0.01
    with httpx2.stream("POST", f"{server}/api/pull", json={"model": "org/second"}) as pulling:
        lines = pulling.iter_lines()
        while "completed" not in next(lines):
            pass
        go(page, "models")
        page.wait_for("downloading", "#model-list")
        page.wait_for("org/second", "#model-list")
        assert "org/second" not in page.run("return document.querySelector('#model').textContent")
        page.browser.wait(
            "[...document.querySelectorAll('#model-list li')].some((row) => !row.innerText"
            ".includes('Load') && row.innerText.includes('downloading, '))"
        )
    hub.pause = 0


def test_a_model_that_cannot_be_had_or_loaded_says_why(page, hub):
    hub.repositories["org/junk"] = {"junk-Q8_0.gguf": b"GGUF" * 1000}
    go(page, "models")
    page.browser.keys("#pull-name", "org/none" + ENTER)
    page.wait_for("org/none", "#pull-list .notice")
    assert page.run("return document.querySelector('#pull-list progress').hidden")
    page.browser.keys("#pull-name", "org/junk:Q8_0" + ENTER)
    page.wait_for("of a kind that Quire does not support", "#pull-list")
    page.click("Load broken")
    wait_for_state(page, "broken", "failed")
    page.wait_for("[models] broken cannot be loaded", "#model-list")
    page.browser.complaints()  # of the 400


def test_the_only_model_stays_and_says_so(scripted):
    go(scripted, "models")
    wait_for_state(scripted, "quire-tiny", "ready")
    scripted.click("Unload quire-tiny")
    scripted.wait_for("only model and stays", "#model-list .notice")


def test_a_key_of_the_scope_admin_is_asked_for(chromium, engine):
    keys = (ApiKey.create("user", ["read", "infer"]), ApiKey.create("keeper"))
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    with run_in_thread(Service(engine, EngineConfig(), Shared(options, keys))) as url:
        page = Page(chromium, url)
        page.open()
        go(page, "models")
        page.wait_for("needs an API key", "#list-failure")
        chromium.keys("#list-failure input", "user" + ENTER)
        wait_for_state(page, "quire-tiny", "ready")
        assert not page.run("return document.querySelector('#list-failure').innerText")
        chromium.keys("#pull-name", "org/none" + ENTER)
        page.wait_for("`admin`", "#pull-list .notice")
        page.click("Unload quire-tiny")
        page.wait_for("`admin`", "#model-list .notice")
        chromium.keys("#model-list .notice input", "keeper" + ENTER)
        page.wait_for("only model and stays", "#model-list .notice")


def test_a_pull_that_this_key_cannot_watch_is_listed_without_an_error(
    chromium, engine, monkeypatch
):
    """The page told those who had asked for nothing that their key lacks a scope."""
    released = threading.Event()

    def pull(self, name, revision, on_progress):
        on_progress(PullProgress("pulling", completed=1, total=4))
        assert released.wait(240)

    monkeypatch.setattr(Store, "pull", pull)
    keys = (ApiKey.create("user", ["read", "infer"]), ApiKey.create("keeper"))
    shared = Shared(ServerOptions(port=0, uvicorn_log_level="warning"), keys)
    with run_in_thread(Service(engine, EngineConfig(), shared)) as url:
        begun = {"headers": {"Authorization": "Bearer keeper"}, "json": {"model": "org/none"}}
        with httpx2.stream("POST", f"{url}/models/pull", **begun) as pulling:
            assert "pulling" in next(pulling.iter_lines())
        page = Page(chromium, url)
        page.open()
        go(page, "models")
        page.wait_for("needs an API key", "#list-failure")
        chromium.keys("#list-failure input", "user" + ENTER)
        try:
            page.wait_for("org/none", "#model-list")
            for _ in range(20):
                shown = page.run("return document.querySelector('#pull-list').innerText")
                assert "admin" not in shown
                time.sleep(0.1)
        finally:
            released.set()
    page.browser.complaints()  # of the 401 and the 403


def test_a_pulled_model_that_this_server_does_not_answer_for_says_so(chromium, engine):
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    config = EngineConfig.from_keywords(model="quire-tiny", served_model_name="other")
    with run_in_thread(Service(engine, config, Shared(options))) as url:
        page = Page(chromium, url)
        page.open()
        page.wait_for("other", "#model")
        go(page, "models")
        chromium.keys("#pull-name", "quire-tiny" + ENTER)
        page.wait_for("the models that it was started with only", "#pull-list")


def test_a_name_is_text_wherever_it_stands(chromium, engine):
    name = '<img src=x onerror="document.title=1">'
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    config = EngineConfig.from_keywords(model="quire-tiny", served_model_name=name)
    with run_in_thread(Service(engine, config, Shared(options))) as url:
        page = Page(chromium, url)
        page.open()
        page.wait_for(name, "#model")
        go(page, "models")
        wait_for_state(page, name, "ready")
        chromium.keys("#pull-name", name + ENTER)
        page.wait_for(name, "#pull-list")
        go(page, "compare")
        chromium.keys("#compare-text", name + ENTER)
        page.wait_for(name, "#left-name")
        assert page.run("return document.querySelectorAll('img').length") == 0


@pytest.fixture
def still(chromium):
    """Have colours change at once, not in an eighth of a second: one between two is no fault."""
    reduced = {"name": "prefers-reduced-motion", "value": "reduce"}
    chromium.cdp("Emulation.setEmulatedMedia", features=[reduced])
    yield
    chromium.cdp("Emulation.setEmulatedMedia", features=[])


def test_every_text_can_be_read_and_every_control_has_a_name(page, still):
    page.set("max_tokens", "4")
    for _ in ("light", "dark"):
        page.browser.click("#theme")
        go(page, "models")
        page.wait_for("broken", "#model-list")
        page.browser.keys("#pull-name", "../x" + ENTER)
        page.wait_for("invalid model name", "#pull-list")
        assert page.run(HARD_TO_USE) == []
        go(page, "compare")
        page.browser.keys("#compare-text", "Hi" + ENTER)
        page.browser.wait("document.querySelectorAll('#columns .foot').length == 2")
        page.browser.wait("document.querySelector('#compare-stop').hidden")
        assert page.run(HARD_TO_USE) == []
    page.browser.complaints()  # of the 400


def test_a_phone_shows_answers_below_each_other(page):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.browser.cdp("Emulation.setDeviceMetricsOverride", **size)
    try:
        page.open()
        page.wait_for("quire-tiny", "#model")
        page.click("Conversations", "header")
        go(page, "compare")
        page.set("max_tokens", "4")
        page.browser.keys("#compare-text", "Hi" + ENTER)
        page.browser.wait("document.querySelectorAll('#columns article .foot').length == 2")
        page.browser.wait("document.querySelector('#compare-stop').hidden")
        boxes = (
            f"document.querySelector('#{side}-answer').getBoundingClientRect().toJSON()"
            for side in ("left", "right")
        )
        left, right = page.run(f"return [{','.join(boxes)}]")
        assert left["bottom"] <= right["top"] and left["width"] == right["width"]
        assert page.run("return document.documentElement.scrollWidth") == 390
        page.click("Conversations", "header")
        go(page, "models")
        wait_for_state(page, "quire-tiny", "ready")
        assert page.run("return document.documentElement.scrollWidth") == 390
    finally:
        page.browser.cdp("Emulation.clearDeviceMetricsOverride")
