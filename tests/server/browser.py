"""Headless Chromium over ChromeDriver's HTTP API: just what the page's test needs of it."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

# No sandbox: it cannot start as root, as in a container. Others keep Chromium off the network, and
# from drawing a caret again and again, keeping pages that were left, a process for each page, and
# two pages of its own for the list under the address.
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update --disable-dev-shm-usage
--blink-settings=caretBlinkInterval=0 --renderer-process-limit=1""".split()
_LEFT_OUT = """BackForwardCache ProactivelySwapBrowsingInstance SpareRendererForSitePerProcess
WebUIOmniboxPopup WebUIOmniboxAimPopup"""
FLAGS.append("--disable-features=" + ",".join(_LEFT_OUT.split()))
#: Keys that are no text, by WebDriver's characters: what a page calls each, and its number.
ENTER, ESCAPE, SHIFT, UP, RIGHT = "\ue007", "\ue00c", "\ue008", "\ue013", "\ue014"
_KEYS = {
    ENTER: ("Enter", 13),
    ESCAPE: ("Escape", 27),
    UP: ("ArrowUp", 38),
    RIGHT: ("ArrowRight", 39),
}
_PARTS = re.compile("[\ue000-\uf8ff]|[^\ue000-\uf8ff]+")
_FOCUS = """
    const element = document.querySelector(arguments[0]);
    element.scrollIntoView({ block: "nearest" });
    if (!element.checkVisibility() || element.disabled) return false;
    if (element !== document.activeElement) {
        element.focus();
        if (element.matches("textarea, [type=text]")) {
            element.setSelectionRange(element.value.length, element.value.length);
        }
    }
    return element === document.activeElement;
"""
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
#: What a script ends with when another page is loaded.
_LEFT = re.compile("navigat|unload|context|detached")


def missing() -> str:
    """Return which program is not installed, or nothing."""
    return " ".join(name for name in ("chromium", "chromedriver") if not shutil.which(name))


class Browser:
    """One tab.

    Args:
        session: Client of the WebDriver session.
    """

    def __init__(self, session: httpx2.Client) -> None:
        self._session = session

    def _post(self, path: str, **body: Any) -> Any:
        answer = self._session.post(path, json=body).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(answer["message"])
        return answer

    def open(self, url: str) -> None:
        """Load a page and wait for it."""
        self._post("/url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page and return what it returns."""
        return self._post("/execute/sync", script=script, args=arguments)

    def wait(self, expression: str, seconds: float = 60) -> Any:
        """Wait until an expression is true and return its value.

        The page itself looks again and again: a question by WebDriver takes three processes.
        """
        end = time.monotonic() + seconds
        while not (value := self._watch(expression)):
            assert time.monotonic() < end, (expression, self.run("return document.body.innerText"))
        return value

    def _watch(self, expression: str) -> Any:
        """Return what is true within a second; otherwise, or when the page is left, a false one."""
        script = f"""return (async () => {{
            for (let left = 50; ; left--) {{
                const value = await ({expression});
                if (value || !left) return value;
                await new Promise((resolve) => setTimeout(resolve, 20));
            }}
        }})()"""
        try:
            return self.run(script)
        except AssertionError as error:
            if not _LEFT.search(str(error)):
                raise
            return None

    def keys(self, selector: str, text: str) -> None:
        """Type at the end of an element; a :data:`SHIFT` is held until the next one.

        Text comes as from an input method, at once: WebDriver presses a key for each character,
        which takes as long as a page to answer.
        """
        assert self.run(_FOCUS, selector), f"{selector} takes no keys"
        modifiers = 0
        for part in _PARTS.findall(text):
            if part == SHIFT:
                modifiers ^= 8
            elif part in _KEYS:
                self._press(*_KEYS[part], modifiers)
            else:
                self.cdp("Input.insertText", text=part)

    def _press(self, key: str, number: int, modifiers: int) -> None:
        typed = {"text": "\r"} if key == "Enter" else {}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        self.cdp("Input.dispatchKeyEvent", type="keyDown", **event, **typed)
        self.cdp("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        found = self._post("/element", using="css selector", value=selector)
        self._post(f"/element/{found[_ELEMENT]}/click")

    def cdp(self, command: str, **parameters: Any) -> Any:
        """Run a command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", cmd=command, params=parameters)

    def hover(self, selector: str) -> None:
        """Move the mouse over an element."""
        x, y = self.run(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]",
            selector,
        )
        self.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def new_tab(self) -> tuple[str, str]:
        """Open an empty tab and go to it; return the handles of the tab before and of this one."""
        before: str = self._session.get("/window").json()["value"]
        handle: str = self._post("/window/new", type="tab")["handle"]
        self._post("/window", handle=handle)
        return before, handle

    def close_tab(self, handle: str, then: str) -> None:
        """Close the tab that is shown and go to another."""
        self._post("/window", handle=handle)
        self._session.delete("/window")
        self._post("/window", handle=then)

    def screenshot(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self._session.get("/screenshot").json()["value"]))

    def complaints(self) -> list[str]:
        """Return what the page wrote to its console since the last call."""
        entries = self._post("/se/log", type="browser")
        return [entry["message"] for entry in entries]


def _start_driver() -> tuple[subprocess.Popen[str], int]:
    """Start chromedriver; return its process and port.

    The driver takes a port that is free on ::1, and ends where the same one is taken on 127.0.0.1.
    """
    said: list[str] = []
    for _ in range(5):
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert driver.stdout is not None
        for line in driver.stdout:
            if match := re.search(r"successfully on port (\d+)", line):
                return driver, int(match[1])
            said.append(line)
        driver.communicate(timeout=60)
    raise OSError(f"chromedriver takes no port: {''.join(said)}")


@contextmanager
def start_browser(profile: Path) -> Iterator[Browser]:
    """Run Chromium with an empty profile folder."""
    driver, port = _start_driver()
    try:
        options = {"args": [*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,860"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        url = f"http://127.0.0.1:{port}/session"
        body = {"capabilities": {"alwaysMatch": wanted}}
        started = httpx2.post(url, json=body, timeout=180).json()["value"]
        url += f"/{started['sessionId']}"
        with httpx2.Client(base_url=url, timeout=60) as session:
            try:
                yield Browser(session)
            finally:
                httpx2.delete(url, timeout=60)
    finally:
        driver.terminate()
        driver.communicate(timeout=60)
