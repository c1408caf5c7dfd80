"""The chat page: what is served, and the page itself in a real browser where one is installed."""

from __future__ import annotations

import re
import signal
import time

from quire.core.errors import CapacityError
from quire.server.access.authentication import ApiKey
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.playground.routes import FOLDER, PAGE
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.browser import ENTER, ESCAPE, RIGHT, SHIFT, UP
from tests.server.chat_page import Page
from tests.server.conftest import run_in_thread
from tests.servers import start_server

# --- What is served


def test_the_page_and_its_assets(client):
    for path, media_type in (
        ("/", "text/html"),
        ("/playground/page.css", "text/css"),
        ("/playground/page.js", "text/javascript"),
        ("/playground/api.js", "text/javascript"),
        ("/playground/answer.css", "text/css"),
    ):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"] == f"{media_type}; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy and "http" not in policy
        # TGI's clients post their requests to the root.
        assert client.post(path).status_code == (415 if path == "/" else 405)
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
    assert client.get("/").text == "Ollama is running", "what its clients look for"
    for path in PAGE:
        if path != "/":
            assert client.get(path).status_code == 404
    assert client.post("/playground/render", json={"text": "a"}).status_code == 404
    assert client.get("/v1/models").status_code == 200


def test_the_page_needs_no_key_but_the_api_does(serve):
    client = serve(api_key="secret", root_path="/proxy")
    for path in PAGE:
        assert client.get(path).status_code == 200
    assert client.get("/v1/models").status_code == 401
    assert client.get("/playground/other").status_code == 401
    assert client.post("/playground/render", json={"text": "a"}).status_code == 401
    client = serve(api_key="secret", playground=False)
    assert client.get("/").status_code == 401


# --- In a browser


def test_a_conversation_with_quire_tiny(chromium, device):
    settings = ["--device", device, "--memory", "64MiB", "--threads", "1", "--port", "0"]
    process = start_server(["quire-tiny", *settings])
    try:
        page = Page(chromium, process.wait_ready())
        page.open()
        page.wait_for("quire-tiny", "#model")
        chromium.complaints()
        page.click("Settings", "header")
        chromium.keys("[name=temperature]", "0")
        chromium.click("[name=logprobs]")
        answer = page.ask("What is the capital of France?")
        assert "Paris" in answer
        assert "tokens/s" in answer and "first token" in answer and "The model finished." in answer
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


def test_accepted_drafts_are_shown_under_the_mouse(chromium, device, tmp_path):
    config = '{"method": "draft_model", "model": "quire-tiny-draft", "adaptive": false}'
    settings = ["--device", device, "--memory", "64MiB", "--threads", "1", "--port", "0"]
    process = start_server(["quire-tiny", *settings, "--speculative-config", config])
    try:
        page = Page(chromium, process.wait_ready())
        page.open()
        page.wait_for("quire-tiny", "#model")
        chromium.complaints()
        page.click("Settings", "header")
        chromium.keys("[name=temperature]", "0")
        chromium.click("[name=logprobs]")
        answer = page.ask("Tell me a story about a fox.")
        assert re.search(r"\n[1-5](\.\d)? tokens/step", answer)
        chromium.hover("article:last-child .token[data-origin]")
        page.wait_for("proposed by the draft model, accepted", "#tip .origin")
        chromium.screenshot(tmp_path / "accepted.png")
        chromium.hover("article:last-child .token:not([data-origin])")
        chromium.wait("!document.querySelector('#tip .origin')")
        page.wait_for("%", "#tip .chosen")
        assert chromium.complaints() == []
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
    end = time.monotonic() + 60
    while engine.ended != ["closed"]:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert not engine.open_requests
    scripted.open()
    assert scripted.bodies() == ["Go on\nand on", "x" * 20]


def test_any_message_can_be_edited_and_no_version_is_lost(scripted, engine):
    browser = scripted.browser
    scripted.ask("First")
    engine.text = "More"
    scripted.ask("Next")
    scripted.click("Edit", "article:first-child")
    browser.keys(".editor textarea", " and second" + ENTER)
    scripted.last()
    assert scripted.bodies() == ["First and second", "More"], "what followed belongs to the other"
    scripted.click("Version before", "article:first-child")
    assert scripted.bodies() == ["First", "Grüße 😀!", "Next", "More"]
    scripted.click("Next version", "article:first-child")
    engine.text = "Another one"
    scripted.click("Regenerate", "article:last-child")
    scripted.last()
    assert scripted.bodies() == ["First and second", "Another one"]
    assert "2/2" in scripted.run("return document.querySelector('article:last-child').innerText")
    browser.keys("#prompt", UP)
    browser.keys(".editor textarea", "x" + ESCAPE)
    assert scripted.bodies() == ["First and second", "Another one"]
    scripted.open()
    assert scripted.bodies() == ["First and second", "Another one"]


def test_an_edited_answer_is_gone_on_from(scripted, engine):
    engine.text = "Once upon"
    scripted.ask("Tell")
    scripted.click("Edit", "article:last-child")
    scripted.browser.keys(".editor textarea", " a time")
    engine.text = ", there was a fox."
    scripted.click("Save")
    assert scripted.bodies()[-1] == "Once upon a time"
    assert len(engine.params) == 1, "saving asks for nothing"
    prompts = record_prompts(engine)
    scripted.click("Continue")
    scripted.last()
    assert scripted.bodies()[-1] == "Once upon a time, there was a fox."
    assert prompts[0].endswith("<|im_start|>assistant\nOnce upon a time")


def record_prompts(engine):
    """Return a list that gets the text of each prompt that is to come."""
    prompts, generate = [], engine.generate

    def recorded(request):
        prompts.append(engine.tokenizer.decode(request.prompt_token_ids, False))
        return generate(request)

    engine.generate = recorded
    return prompts


def test_conversations_are_listed_renamed_found_and_deleted(scripted, engine):
    browser = scripted.browser
    scripted.ask("First")
    scripted.click("New chat")
    assert scripted.bodies() == []
    scripted.ask("Second")
    assert scripted.chats() == ["Second", "First"]
    scripted.click("First")
    assert scripted.bodies()[0] == "First"
    scripted.click("Rename First")
    browser.keys("#chat-list input", "Foxes" + ENTER)
    scripted.ask("More")
    assert scripted.chats() == ["Foxes", "Second"]
    scripted.click("Delete Foxes")
    assert (scripted.chats(), scripted.bodies()) == (["Second"], [])
    scripted.click("Undo", "#notice")
    assert scripted.chats() == ["Foxes", "Second"] and scripted.bodies()[2] == "More"
    scripted.open()
    assert scripted.bodies()[0] == "First", "the tab keeps its conversation"


def test_an_answer_goes_on_while_another_conversation_is_shown(scripted, engine):
    engine.text, engine.hold_after = "x" * 40, 20
    scripted.browser.keys("#prompt", "Slow" + ENTER)
    scripted.wait_for("x" * 20, "article:last-child .body")
    scripted.click("New chat")
    engine.hold_after = None
    engine.text = "Quick one"
    assert "Quick one" in scripted.ask("Quick")
    scripted.browser.wait("!document.querySelector('.dot')")
    scripted.click("Slow")
    scripted.last()
    assert scripted.bodies() == ["Slow", "x" * 40]


def test_another_tab_sees_the_answer(scripted, engine):
    browser = scripted.browser
    engine.text, engine.hold_after = "x" * 40, 20
    browser.keys("#prompt", "Slow" + ENTER)
    scripted.wait_for("x" * 20, "article:last-child .body")
    first, second = browser.new_tab()
    scripted.open()
    assert scripted.bodies() == []
    browser.wait("document.querySelectorAll('.chat').length == 1")
    scripted.click("Slow")
    engine.hold_after = None
    browser.wait(f"document.querySelector('#log').innerText.includes({'x' * 40!r})")
    browser.close_tab(second, first)
    scripted.last()
    assert scripted.bodies() == ["Slow", "x" * 40]


def test_two_tabs_do_not_answer_in_one_conversation(scripted, engine):
    """Each wrote what it knew of the conversation over what the other had been told."""
    browser = scripted.browser
    engine.text = "One. Two."
    scripted.set("max_tokens", "4")
    scripted.ask("Count")
    scripted.set("max_tokens", "")
    engine.text, engine.hold_after = "x" * 40, 20
    browser.keys("#prompt", "Slow" + ENTER)
    scripted.wait_for("x" * 20, "article:last-child .body")
    first, second = browser.new_tab()
    scripted.open()
    scripted.click("Count")
    browser.keys("#prompt", "Also" + ENTER)
    scripted.wait_for("Another tab is answering", "#notice")
    assert scripted.run("return document.querySelector('#prompt').value") == "Also"
    for label in ("Regenerate", "Continue"):
        scripted.click("Close", "#notice")
        scripted.click(label, "article:nth-child(2)")
        scripted.wait_for("Another tab is answering", "#notice")
    scripted.click("Edit", "article:nth-child(3)")
    browser.keys(".editor textarea", " one" + ENTER)
    browser.wait("document.querySelector('.editor textarea')?.value == 'Slow one'")
    assert len(engine.params) == 2
    engine.released.set()
    browser.wait("navigator.locks.query().then(({ held }) => !held.length)")
    engine.text, engine.hold_after = "Quick", None
    browser.keys(".editor textarea", ENTER)
    scripted.last()
    assert scripted.bodies() == ["Count", "One.", "Slow one", "Quick"]
    assert "Quick" in scripted.ask("")
    browser.close_tab(second, first)
    browser.wait("document.querySelector('article:nth-child(6) .body')?.textContent == 'Quick'")
    assert scripted.bodies()[2:] == ["Slow one", "Quick", "Also", "Quick"]
    scripted.click("Version before", "article:nth-child(3)")
    assert scripted.bodies() == ["Count", "One.", "Slow", "x" * 40]


def test_without_locks_a_conversation_goes_on(scripted, engine):
    """Browsers have none on pages that come without HTTPS from another machine."""
    script = "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })"
    made = scripted.browser.cdp("Page.addScriptToEvaluateOnNewDocument", source=script)
    try:
        scripted.open()
        assert scripted.run("return navigator.locks === undefined")
        scripted.ask("Hi")
        scripted.click("Regenerate")
        scripted.last()
        assert scripted.bodies() == ["Hi", engine.text]
    finally:
        scripted.browser.cdp("Page.removeScriptToEvaluateOnNewDocument", **made)


def test_parameters_are_sent(scripted, engine):
    browser = scripted.browser
    scripted.click("Settings", "header")
    for name, value in (
        ("system", "Be brief"), ("temperature", "0.5"), ("top_p", "0.25"), ("max_tokens", "7"),
        ("seed", "3"), ("stop", "one\ntwo"), ("repetition_penalty", "1.5"),
    ):  # fmt: skip
        browser.keys(f"[name={name}]", value)
    scripted.ask("Hi")
    (params,) = engine.params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.25, 7)
    assert (params.seed, list(params.stop), params.repetition_penalty) == (3, ["one", "two"], 1.5)
    scripted.open()
    assert browser.run("return document.querySelector('[name=stop]').value") == "one\ntwo"


def test_refusals_are_shown_in_the_servers_words(scripted, client):
    browser = scripted.browser
    scripted.click("Settings", "header")
    browser.click("[name=json]")
    scripted.set("schema", '{"type": ')
    scripted.wait_for("JSON", "#schema-error")
    assert "The schema is not JSON" in scripted.ask("Hi")
    scripted.set("schema", '"nonsense"')
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


def test_after_a_failure_it_goes_on_from_what_came(scripted, engine):
    engine.text, engine.fail_after = "abcdef", 3
    shown = scripted.ask("Hi")
    assert shown.startswith("abc") and "The answer broke off" in shown
    engine.text, engine.fail_after = "def", None
    prompts = record_prompts(engine)
    scripted.click("Try again")
    assert "broke off" not in scripted.last()
    assert scripted.bodies() == ["Hi", "abcdef"]
    assert prompts[0].endswith("<|im_start|>assistant\nabc")


def test_an_answer_in_the_middle_goes_on_as_another_version(scripted, engine):
    """What came was written into it, though the model had been sent all that followed."""
    engine.text = "One. Two."
    scripted.set("max_tokens", "4")
    scripted.ask("Count")
    scripted.set("max_tokens", "")
    engine.text, engine.fail_after = "abcdef", 3
    scripted.ask("Next")
    engine.text, engine.fail_after = "More", None
    scripted.ask("And")
    prompts = record_prompts(engine)
    engine.text = "def"
    scripted.click("Try again", "article:nth-child(4)")
    assert "broke off" not in scripted.last()
    assert scripted.bodies() == ["Count", "One.", "Next", "abcdef"]
    engine.text = " Two."
    scripted.click("Continue", "article:nth-child(2)")
    scripted.last()
    assert scripted.bodies() == ["Count", "One. Two."]
    ends = ["<|im_start|>assistant\nabc", "<|im_start|>assistant\nOne."]
    assert [prompt.endswith(end) for prompt, end in zip(prompts, ends, strict=True)] == [True] * 2
    scripted.open()
    scripted.click("Version before", "article:last-child")
    assert scripted.bodies() == ["Count", "One.", "Next", "abcdef"]
    scripted.click("Version before", "article:last-child")
    assert scripted.bodies() == ["Count", "One.", "Next", "abc", "And", "More"]


def test_a_failure_in_the_middle_is_tried_again_as_another_version(scripted, engine):
    engine.error, engine.fail_after = RuntimeError("broken"), 0
    scripted.ask("Hi")
    engine.fail_after = None
    scripted.ask("And")
    engine.text = "Hello"
    scripted.click("Try again", "article:nth-child(2)")
    scripted.last()
    assert scripted.bodies() == ["Hi", "Hello"]
    scripted.click("Version before", "article:last-child")
    assert scripted.bodies() == ["Hi", "", "And", "Grüße 😀!"]


def test_an_answer_that_is_cut_off_says_so_and_goes_on(scripted, engine):
    engine.text = "One. Two."
    scripted.set("max_tokens", "4")
    assert "cut off at the token limit" in scripted.ask("Count")
    engine.text = " Two."
    scripted.set("max_tokens", "")
    scripted.click("Continue")
    assert "The model finished." in scripted.last()
    assert scripted.bodies() == ["Count", "One. Two."]


def test_overload_counts_down_to_the_time_that_the_server_names(scripted, engine):
    engine.error, engine.fail_after = CapacityError("[queue] full.", 3.0), 0
    scripted.run("const now = Date.now(); window.clock = Date.now; Date.now = () => now;")
    shown = scripted.ask("Hi")
    assert "cannot answer now (503)" in shown and "[queue] full." in shown
    assert re.search(r"Try again in [123] s", shown)
    assert scripted.run("return document.querySelector('article .notice button').disabled")
    engine.fail_after = None
    scripted.run("Date.now = clock;")
    scripted.browser.wait("!document.querySelector('article .notice button').disabled")
    scripted.click("Try again")
    assert scripted.last() and scripted.bodies() == ["Hi", engine.text]


def test_a_key_is_asked_for_and_kept_for_the_tab(chromium, serve):
    page = Page(chromium, str(serve(api_key="secret").base_url))
    page.open()
    page.wait_for("needs an API key", "#notice")
    chromium.keys("#notice input", "guess" + ENTER)
    page.wait_for("This API key is wrong", "#notice")
    chromium.keys("#notice input", "secret" + ENTER)
    page.wait_for("quire-tiny", "#model")
    assert not page.run("return document.querySelector('#notice').checkVisibility()")
    assert "Grüße 😀!" in page.ask("Hi")
    assert "secret" not in page.run("return JSON.stringify(localStorage)")


def test_a_key_without_the_scope_says_so(chromium, engine):
    keys = (ApiKey.create("reader", ["read"]), ApiKey.create("writer", ["read", "infer"]))
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    with run_in_thread(Service(engine, EngineConfig(), Shared(options, keys))) as url:
        _ask_without_the_scope(Page(chromium, url), chromium)


def _ask_without_the_scope(page, chromium):
    page.open()
    page.wait_for("needs an API key", "#notice")
    chromium.keys("#notice input", "reader" + ENTER)
    page.wait_for("quire-tiny", "#model")
    shown = page.ask("Hi")
    assert "may not do that" in shown and "`infer`" in shown
    chromium.keys("article .notice input", "writer" + ENTER)
    page.wait_for("Grüße 😀!", "article:last-child .body")
    assert page.last() and page.bodies() == ["Hi", "Grüße 😀!"]


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
        scripted.click("Conversations", "header")
        assert scripted.run("return document.querySelector('#chats').checkVisibility()")
        scripted.click("Hi", "#chats")
        assert not scripted.run("return document.querySelector('#chats').checkVisibility()")
        assert browser.run("return document.documentElement.scrollWidth") == 390
        colours = [(browser.click("#theme"), browser.run(background))[1] for _ in range(2)]
        assert colours[0] != colours[1]
    finally:
        browser.cdp("Emulation.clearDeviceMetricsOverride")
