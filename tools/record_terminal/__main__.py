"""Records docs/terminal.md and its picture: ``python -m tools.record_terminal``.

Needs tmux, smollm2 on this machine (``quire pull smollm2``) and a free port 8000.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import psutil

from quire.store.hub import find_model
from quire.store.named_models import catalogue
from tests.store.hub_stand_in import HubStandIn, serving
from tools.record_terminal.page import picture, with_captures
from tools.record_terminal.tmux_session import TmuxSession

ROOT = Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs/terminal.md", ROOT / "docs/images/top.svg"
MODEL, SECOND = "smollm2", "quire-tiny"
SIZE = (100, 30)
#: Seconds between 1,000 bytes of the stand-in: slow enough to see the bar.
PAUSE = 2e-5
#: quire top is captured once its window is full.
TOP_SECONDS = 12.0
ADDRESS = ("127.0.0.1", 8000)
URL = "http://{}:{}".format(*ADDRESS)
SYSTEM = (
    "You are a friendly assistant who answers in a few short sentences and never makes up facts."
)


def main() -> None:
    """Record everything and write it."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    file = find_model(MODEL)
    if shutil.which("tmux") is None or file is None:
        sys.exit(f"[record] tmux and {MODEL} must be on this machine. quire pull {MODEL}.")
    with socket.socket() as probe:
        if probe.connect_ex(ADDRESS) == 0:
            sys.exit(f"[record] port {ADDRESS[1]} must be free; a server answers there.")
    entry = catalogue()[MODEL]
    hub = HubStandIn(
        {entry.repository: {entry.file: Path(file).read_bytes()}},
        commit=entry.commit,
        pause=PAUSE,
    )
    with tempfile.TemporaryDirectory() as folder, serving(hub):
        home = Path(folder)
        environment = {
            "HOME": folder,
            "PATH": os.pathsep.join([str(ROOT / ".venv/bin"), "/usr/bin", "/bin"]),
            "LANG": "C.UTF-8",
            "TERM": "screen-256color",
            "HF_ENDPOINT": hub.url,
        }
        # For the parts of the machine's speed in quire top.
        subprocess.run(["quire", "doctor"], env=environment, check=True, stdout=subprocess.DEVNULL)
        session = TmuxSession(environment, SIZE, home)
        try:
            captures, coloured = record(session)
        finally:
            session.close()
            end_server(home)
    PAGE.write_text(with_captures(PAGE.read_text(), captures))
    PICTURE.write_text(picture(coloured, SIZE[0]))


def record(session: TmuxSession) -> tuple[dict[str, str], str]:
    """Return the captures by name, and the one of quire top with its colours."""
    captures = {}
    session.clear()
    session.type(f"quire pull {MODEL}")
    during = session.wait_for(r"[45]\d\.\d/98\.4 MB|[45]\d%")
    after = session.wait_for_prompt()
    captures["pull"] = f"{during}\n\n{after}"
    captures["list"] = command(session, "quire list")
    captures["run"] = command(session, f'quire run {MODEL} "What is 2+2?"')
    session.clear()
    session.type(f"quire run {SECOND}")
    session.wait_for(r"^> *\Z")
    session.type("What is the capital of France?")
    session.wait_for(r"a second\]\n> *\Z")
    session.press("C-d")
    captures["chat"] = session.wait_for_prompt()
    captures["ps"] = command(session, "quire ps")
    session.clear()
    with load():
        session.type("quire top")
        time.sleep(TOP_SECONDS)
        session.wait_for("q ends")
        captures["top"], coloured = session.screen(), session.screen(colours=True)
        session.type("q", enter=False)
        session.wait_for_prompt()
    session.clear()
    session.type(f"quire stop {MODEL}")
    session.wait_for_prompt()
    time.sleep(1.0)  # Unloading takes a moment.
    session.type("quire ps")
    captures["stop"] = session.wait_for_prompt()
    return captures, coloured


def command(session: TmuxSession, line: str) -> str:
    """Return the screen after a command alone."""
    session.clear()
    session.type(line)
    time.sleep(0.3)
    return session.wait_for_prompt()


@contextmanager
def load() -> Iterator[None]:
    """Have clients talk to both models until the end of the block."""
    over = threading.Event()

    def talk(model: str, number: int) -> None:
        while not over.is_set():
            question = f"Tell me something about the number {number}."
            body = {
                "model": model,
                "messages": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": question},
                ],
                "max_tokens": 60,
            }
            with suppress(httpx2.HTTPError):
                httpx2.post(f"{URL}/v1/chat/completions", json=body, timeout=60)

    clients = [threading.Thread(target=talk, args=(MODEL, number)) for number in range(6)]
    clients += [threading.Thread(target=talk, args=(SECOND, number)) for number in range(2)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def end_server(home: Path) -> None:
    """End the server that ``quire run`` has started with this home."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = process.environ().get("HOME") == str(home)
            if mine and "serve" in process.cmdline():
                process.terminate()
                process.wait(30)


if __name__ == "__main__":
    main()
