"""Pictures in the chat page: pasted and dropped, in a real browser where one is installed."""

from __future__ import annotations

import base64
import io
import signal

import pytest

pytest.importorskip("PIL")

from PIL import Image

from tests.server.browser import ENTER
from tests.server.chat_page import Page
from tests.servers import start_server
from tools.hostile_pictures import picture
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Gives files to the page as a browser does; arguments: the event, names and base64 of each.
GIVE = """
    const [name, files, text] = arguments;
    const transfer = new DataTransfer();
    for (const [file, type, data] of files) {
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      transfer.items.add(new File([bytes], file, { type }));
    }
    if (text) transfer.setData("text/plain", text);
    const more = name === "paste" ? { clipboardData: transfer } : { dataTransfer: transfer };
    const Kind = name === "paste" ? ClipboardEvent : DragEvent;
    const event = new Kind(name, { bubbles: true, cancelable: true, ...more });
    document.querySelector(name === "paste" ? "#prompt" : "main").dispatchEvent(event);
    return event.defaultPrevented;
"""
SHOWN = "return [...document.querySelectorAll(arguments[0] + ' .pictures img')].map((i) => i.src)"


def give(page, event, *files, text=""):
    """Paste or drop files, each (name, type, bytes); return whether the page took the event."""
    encoded = [(name, kind, base64.b64encode(data).decode()) for name, kind, data in files]
    return page.run(GIVE, event, encoded, text)


def wait_for_pictures(page, number):
    page.browser.wait(f"document.querySelectorAll('#pictures img').length == {number}")


@pytest.fixture(scope="module")
def server(tmp_path_factory, device):
    folder = tmp_path_factory.mktemp("llava") / "tiny-llava"
    random_checkpoint(folder, PRESETS["tiny-llava"])
    settings = ["--device", device, "--memory", "64MiB", "--threads", "1", "--port", "0"]
    process = start_server([str(folder), *settings, "--served-model-name", "llava"])
    try:
        yield process
    finally:
        process.end(signal.SIGKILL)


@pytest.fixture
def page(chromium, server):
    opened = Page(chromium, server.wait_ready())
    opened.open()
    opened.browser.wait("!document.querySelector('#attach').hidden")
    opened.set("max_tokens", "4")
    chromium.complaints()
    return opened


PNG = ("one.png", "image/png", picture())
JPEG = ("two.jpg", "image/jpeg", picture(format="JPEG", seed=1))


def test_pictures_are_pasted_dropped_removed_and_asked_about(page, tmp_path):
    assert give(page, "paste", PNG)
    wait_for_pictures(page, 1)
    assert give(page, "dragover", JPEG)
    assert page.run("return document.querySelector('.dropping') !== null")
    assert give(page, "drop", JPEG, PNG)
    wait_for_pictures(page, 3)
    assert not page.run("return document.querySelector('.dropping') !== null")
    page.click("Remove picture 1", "#pictures")
    shown = page.run(SHOWN, "#composer")
    want = [
        f"data:{kind};base64,{base64.b64encode(data).decode()}" for _, kind, data in (JPEG, PNG)
    ]
    assert shown == want, "small pictures are sent as they are"
    page.browser.screenshot(tmp_path / "chosen.png")
    answer = page.ask("What is it?")
    assert "cut off at the token limit" in answer or "ended by stop" in answer
    tokens = int(answer.split(" in,")[0].split()[-1])
    assert tokens > 2 * 16, "each is 16 tokens"
    page.browser.screenshot(tmp_path / "asked.png")
    assert page.run(SHOWN, "article") == want
    assert page.run(SHOWN, "#composer") == []
    page.open()
    assert page.run(SHOWN, "article") == want, "the browser keeps them"
    page.click("Edit", "article:first-child")
    page.browser.keys(".editor textarea", "And now?" + ENTER)
    page.last()
    assert page.run(SHOWN, "article") == want
    assert page.browser.complaints() == []


def test_a_picture_needs_no_text_and_a_large_one_is_made_smaller(page):
    large = io.BytesIO()
    Image.new("RGB", (3072, 200), (200, 30, 30)).save(large, "BMP")
    page.click("New chat")
    assert give(page, "drop", ("large.bmp", "image/bmp", large.getvalue()))
    page.browser.keys("#prompt", ENTER)
    page.browser.wait("document.querySelector('article')")
    assert "in," in page.last(), "one that is being read is waited for"
    (url,) = page.run(SHOWN, "article")
    head, data = url.split(",")
    assert head == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.size == (1536, 100)
    assert page.chats()[0] == "Picture"


def test_what_is_no_picture_is_named_and_text_is_pasted_as_text(page):
    assert give(page, "drop", ("notes.txt", "text/plain", b"no picture"))
    page.wait_for("notes.txt is no picture", "#notice")
    assert not give(page, "paste", PNG, text="a table"), "a spreadsheet's cells come as both"
    assert page.run(SHOWN, "#composer") == []


def test_a_model_of_text_says_that_it_takes_no_pictures(scripted):
    assert scripted.run("return document.querySelector('#attach').hidden")
    assert give(scripted, "drop", PNG), "the browser does not leave the page for the file"
    scripted.wait_for("takes text only", "#notice")
    assert scripted.run(SHOWN, "#composer") == []
