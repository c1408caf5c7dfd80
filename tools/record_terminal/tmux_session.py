"""A shell in a terminal of tmux, typed to and read from; it knows nothing of Quire."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

PROMPT = "$"
WAIT_SECONDS = 120.0


class TmuxSession:
    """A shell with an empty environment of its own.

    Args:
        environment: All that the shell knows.
        size: Columns and lines.
        home: Shown as ``~``, wherever a command names it.
    """

    def __init__(self, environment: Mapping[str, str], size: tuple[int, int], home: Path) -> None:
        self._home = str(home)
        self._socket = f"quire-record-{os.getpid()}"
        columns, lines = size
        variables = [f"{name}={value}" for name, value in environment.items()]
        shell = ["env", "-i", *variables, f"PS1={PROMPT} ", "bash", "--norc", "--noprofile"]
        self._tmux(
            "new-session", "-d", "-c", self._home, "-x", str(columns), "-y", str(lines), *shell
        )
        self.wait_for_prompt()

    def type(self, line: str, enter: bool = True) -> None:
        """Type a line."""
        self._tmux("send-keys", "-l", line)
        if enter:
            self.press("Enter")

    def press(self, key: str) -> None:
        """Press a key, by tmux' name."""
        self._tmux("send-keys", key)

    def clear(self) -> None:
        """Empty the screen; the shell draws its prompt anew."""
        self.press("C-l")
        time.sleep(0.3)

    def screen(self, colours: bool = False) -> str:
        """Return what the screen shows, long lines whole, with or without escape sequences."""
        shown = self._tmux("capture-pane", "-p", "-J", *(["-e"] if colours else []))
        lines = (line.rstrip() for line in shown.replace(self._home, "~").splitlines())
        return "\n".join(lines).rstrip()

    def wait_for(self, pattern: str) -> str:
        """Wait until the screen shows ``pattern``; return the screen.

        Raises:
            TimeoutError: It does not.
        """
        end = time.monotonic() + WAIT_SECONDS
        while not re.search(pattern, shown := self.screen(), re.MULTILINE):
            if time.monotonic() > end:
                raise TimeoutError(f"[record] the screen must show {pattern}; got\n{shown}")
            time.sleep(0.05)
        return shown

    def wait_for_prompt(self) -> str:
        """Wait until the command has ended; return the screen without the new prompt."""
        return self.wait_for(rf"^{re.escape(PROMPT)}\Z").removesuffix(PROMPT).rstrip()

    def close(self) -> None:
        """End the shell and what runs in it."""
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], check=False)

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, "-f", os.devnull, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
