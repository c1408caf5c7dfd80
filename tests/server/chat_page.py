"""The chat page in a browser, used as people use it."""

from __future__ import annotations

from typing import Any

from tests.server.browser import ENTER, Browser


class Page:
    """The page of one server, used as people use it."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = url
        # An earlier server may have had the same port.
        browser.cdp("Storage.clearDataForOrigin", origin=self.url, storageTypes="all")

    def open(self) -> None:
        self.browser.open(self.url)
        self.browser.wait("document.querySelector('#model option, #notice p')")

    def ask(self, text: str) -> str:
        """Send and wait for the end; return what the answer's article shows."""
        self.browser.keys("#prompt", text + ENTER)
        return self.last()

    def last(self) -> str:
        self.browser.wait(
            "document.querySelector('#stop').hidden && !document.querySelector('[aria-busy]')"
        )
        return self.browser.run("return document.querySelector('article:last-child').innerText")

    def bodies(self) -> list[str]:
        script = "return [...document.querySelectorAll('article .body')].map(b => b.textContent)"
        return self.browser.run(script)

    def wait_for(self, text: str, selector: str = "body") -> None:
        self.browser.wait(f"document.querySelector({selector!r})?.innerText.includes({text!r})")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page."""
        return self.browser.run(script, *arguments)

    def click(self, label: str, within: str = "body") -> None:
        """Press the first button with a text or a name that can be seen."""
        script = """
            const named = (button) => [button.textContent.trim(), button.ariaLabel];
            const all = [...document.querySelectorAll(arguments[1] + " button")];
            const button = all.find((one) => named(one).includes(arguments[0]));
            if (button) button.click();
            return Boolean(button);
        """
        assert self.run(script, label, within), (label, within)
        self.browser.wait("!document.querySelector('#composer[aria-busy]')")

    def set(self, name: str, value: Any) -> None:
        """Change a setting."""
        self.run(
            """
            const field = document.querySelector(`[name=${arguments[0]}]`);
            field[field.type === "checkbox" ? "checked" : "value"] = arguments[1];
            field.dispatchEvent(new Event("input", { bubbles: true }));
            """,
            name,
            value,
        )

    def chats(self) -> list[str]:
        """Return the titles of the list."""
        script = "return [...document.querySelectorAll('.chat')].map(c => c.textContent)"
        titles: list[str] = self.run(script)
        return titles
