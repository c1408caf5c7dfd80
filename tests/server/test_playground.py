"""The chat page: what is served, and the page itself in a real browser where one is installed."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from quire.models.hub import ASSETS
from quire.server.playground.routes import FOLDER, PAGE
from tests.server.browser import (
    ENTER,
    ESCAPE,
    RIGHT,
    SHIFT,
    UP,
    Browser,
    missing,
    start_browser,
)
from tools.serve_process import ServeProcess

# --- What is served


def test_the_page_and_its_assets(client):
    for path, media_type in (
        ("/", "text/html"),
        ("/playground/page.css", "text/css"),
        ("/playground/page.js", "text/javascript"),
        ("/playground/api.js", "text/javascript"),
    ):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"] == f"{media_type}; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy and "http" not in policy
        assert client.post(path).status_code == 405
    for path in ("/playground", "/playground/", "/playground/routes.py", "/index.html"):
        assert client.get(path).status_code == 404


def test_every_file_is_served_and_nothing_else_is_asked_for(client):
    """A file that is not in ``PAGE`` would be missing from the page; a foreign URL would leak."""
    names = {file.name for file in FOLDER.iterdir() if file.suffix in {".html", ".css", ".js"}}
    assert names == set(PAGE.values())
    for path in PAGE:
        text = client.get(path).text
        assert len(text.splitlines()) < 500
        urls = re.findall(r"(?:https?:)?//[\w.]+\.\w+[\w/.]*", text)
        assert set(urls) <= {"http://www.w3.org/2000/svg"}, "a namespace, never fetched"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", text)
    for path in re.findall(r'(?:href|src)="([^"#:]+)"', client.get("/").text):
        assert client.get("/" + path).status_code == 200


def test_the_page_can_be_left_out(serve):
    client = serve(playground=False)
    for path in PAGE:
        assert client.get(path).status_code == 404
    assert client.get("/v1/models").status_code == 200


def test_the_page_needs_no_key_but_the_api_does(serve):
    client = serve(api_key="secret", root_path="/proxy")
    for path in PAGE:
        assert client.get(path).status_code == 200
    assert client.get("/v1/models").status_code == 401
    assert client.get("/playground/other").status_code == 401
    client = serve(api_key="secret", playground=False)
    assert client.get("/").status_code == 401


# --- In a browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    if missing():
        pytest.skip(f"not installed: {missing()}")
    with start_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


class Page:
    """The page of one server, used as people use it."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = str(url)
        # An earlier server may have had the same port.
        browser.cdp("Storage.clearDataForOrigin", origin=self.url, storageTypes="all")

    def open(self) -> None:
        self.browser.open(self.url)
        self.browser.wait("document.querySelector('#model, #notice p')")

    def ask(self, text: str) -> str:
        """Send and wait for the end; return what the answer's article shows."""
        self.browser.keys("#prompt", text + ENTER)
        return self.last()

    def last(self) -> str:
        self.browser.wait("document.querySelector('#stop').hidden")
        return self.browser.run("return document.querySelector('article:last-child').innerText")

    def bodies(self) -> list[str]:
        script = "return [...document.querySelectorAll('article .body')].map(b => b.textContent)"
        return self.browser.run(script)

    def wait_for(self, text: str, selector: str = "body") -> None:
        self.browser.wait(f"document.querySelector({selector!r})?.innerText.includes({text!r})")


@pytest.fixture
def scripted(chromium, client) -> Page:
    """The page on the scripted engine."""
    page = Page(chromium, client.base_url)
    page.open()
    return page


def test_a_conversation_with_quire_tiny(chromium, device):
    if not (ASSETS / "quire-tiny").exists():
        pytest.skip("quire-tiny is not in quire/assets")
    settings = ["--device", device, "--memory", "64MiB", "--threads", "1", "--port", "0"]
    process = ServeProcess(["quire-tiny", *settings])
    try:
        page = Page(chromium, process.wait_ready())
        page.open()
        page.wait_for("quire-tiny", "#model")
        chromium.complaints()
        chromium.keys("[name=temperature]", "0")
        chromium.click("[name=logprobs]")
        answer = page.ask("What is the capital of France?")
        assert "Paris" in answer
        assert "tokens/s" in answer and "first token" in answer and "ended by stop" in answer
        assert re.search(r"\d+ in, \d+ out", answer)
        chromium.hover("article:last-child .token:nth-child(4)")
        page.wait_for("␣France", "#tip .chosen")
        assert chromium.run("return document.querySelectorAll('#tip .row').length") == 5
        page.open()
        question, answer = page.bodies()
        assert question == "What is the capital of France?" and "Paris" in answer
        chromium.keys("article:last-child .body", RIGHT + RIGHT)
        page.wait_for("capital", "#tip .chosen")
        assert chromium.complaints() == []
        assert process.end(signal.SIGTERM) == 0
        assert "The server does not answer" in page.ask("And of Spain?")
    finally:
        process.end(signal.SIGKILL)


def test_stop_frees_the_engine_and_keeps_what_was_said(scripted, engine):
    engine.text, engine.hold_after = "x" * 100, 20
    browser = scripted.browser
    browser.keys("#prompt", "Go on" + SHIFT + ENTER + SHIFT + "and on" + ENTER)
    scripted.wait_for("x" * 20, "article:last-child .body")
    assert len(engine.open_requests) == 1
    browser.keys("#prompt", ESCAPE)
    assert "ended by you" in scripted.last()
    end = time.monotonic() + 20
    while engine.ended != ["closed"]:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert not engine.open_requests
    scripted.open()
    assert scripted.bodies() == ["Go on\nand on", "x" * 20]


def test_edit_regenerate_clear_and_undo(scripted, engine):
    browser = scripted.browser
    scripted.ask("First")
    browser.keys("#prompt", UP)
    browser.wait("!document.querySelector('#editing').hidden")
    scripted.ask(" and second")
    assert scripted.bodies() == ["First and second", engine.text]
    engine.text = "Another one"
    browser.click("article:last-child .actions button")
    scripted.last()
    assert scripted.bodies() == ["First and second", "Another one"]
    browser.click("#new")
    assert scripted.bodies() == []
    browser.click("#notice button")
    assert scripted.bodies() == ["First and second", "Another one"]
    # Undoing later would drop what was asked since.
    browser.click("#new")
    scripted.ask("Third")
    assert not browser.run("return document.querySelector('#notice').checkVisibility()")


def test_parameters_are_sent(scripted, engine):
    browser = scripted.browser
    for name, value in (
        ("system", "Be brief"), ("temperature", "0.5"), ("top_p", "0.25"), ("max_tokens", "7"),
        ("seed", "3"), ("stop", "one\ntwo"),
    ):  # fmt: skip
        browser.keys(f"[name={name}]", value)
    scripted.ask("Hi")
    (params,) = engine.params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.25, 7)
    assert (params.seed, list(params.stop)) == (3, ["one", "two"])
    scripted.open()
    assert browser.run("return document.querySelector('[name=stop]').value") == "one\ntwo"


def test_refusals_are_shown_in_the_servers_words(scripted, client):
    browser = scripted.browser
    browser.click("[name=json]")
    set_schema = """
        const field = document.querySelector("[name=schema]");
        field.value = arguments[0];
        field.dispatchEvent(new Event("input", { bubbles: true }));
    """
    browser.run(set_schema, '{"type": ')
    scripted.wait_for("JSON", "#schema-error")
    assert "The schema is not JSON" in scripted.ask("Hi")
    browser.run(set_schema, '"nonsense"')
    shown = scripted.ask("Hi")
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": "nonsense", "strict": True},
        },
    }
    refusal = client.post("/v1/chat/completions", json=body)
    assert refusal.status_code == 400 and "refused the request (400)" in shown
    assert refusal.json()["error"]["message"] in shown


def test_a_failure_in_the_middle_keeps_what_came(scripted, engine):
    engine.text, engine.fail_after = "abcdef", 3
    shown = scripted.ask("Hi")
    assert shown.startswith("abc") and "The answer broke off" in shown and "Try again" in shown


def test_a_key_is_asked_for_and_kept_for_the_tab(chromium, serve):
    page = Page(chromium, serve(api_key="secret").base_url)
    page.open()
    page.wait_for("needs an API key", "#notice")
    chromium.keys("#notice input", "secret" + ENTER)
    page.wait_for("quire-tiny", "#model")
    assert "Grüße 😀!" in page.ask("Hi")
    assert "secret" not in chromium.run("return JSON.stringify(localStorage)")


def test_text_is_only_text(scripted, engine):
    engine.text = "<img src=x onerror=alert(1)>\n```html\n<b>&amp;</b>\n```\n<script>1</script>"
    scripted.ask("<i>Hi</i>")
    user, answer = scripted.bodies()
    assert user == "<i>Hi</i>"
    assert answer == "<img src=x onerror=alert(1)><b>&amp;</b><script>1</script>"
    tags = "return document.querySelectorAll('#log :is(img, b, i, script)').length"
    assert scripted.browser.run(tags) == 0
    assert scripted.browser.run("return document.querySelectorAll('#log pre').length") == 1


def test_a_conversation_can_be_imported(scripted):
    choose = """
        const transfer = new DataTransfer();
        transfer.items.add(new File([arguments[0]], "chat.json"));
        document.querySelector("#file").files = transfer.files;
        document.querySelector("#file").dispatchEvent(new Event("change"));
    """
    scripted.browser.run(choose, '{"messages": [{"role": "robot"}]}')
    scripted.wait_for("chat.json is no conversation", "#notice")
    assert scripted.bodies() == []
    scripted.browser.run(choose, '{"messages": [{"role": "user", "content": "Kept"}]}')
    scripted.wait_for("Kept", "#log")


def test_a_phone_and_both_themes(scripted):
    browser = scripted.browser
    background = "return getComputedStyle(document.body).backgroundColor"
    size = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.cdp("Emulation.setDeviceMetricsOverride", **size)
    try:
        scripted.open()
        assert browser.run("return document.documentElement.scrollWidth") == 390
        assert not browser.run("return document.querySelector('#settings').checkVisibility()")
        browser.click("#toggle")
        assert browser.run("return document.querySelector('#settings').checkVisibility()")
        browser.run("document.querySelector('#settings').scrollTop = 9999")
        top = "return document.querySelector('#close').getBoundingClientRect().top"
        assert browser.run(top) >= 0, "the way back stays in reach"
        browser.click("#close")
        scripted.ask("Hi")
        browser.click("#new")
        tops = "return [...document.querySelectorAll('#notice button')].map(b => b.offsetTop)"
        undo, close = browser.run(tops)
        assert undo == close, "side by side"
        colours = set()
        for _ in ("light", "dark"):
            browser.click("#theme")
            colours.add(browser.run(background))
        assert len(colours) == 2
    finally:
        browser.cdp("Emulation.clearDeviceMetricsOverride")
