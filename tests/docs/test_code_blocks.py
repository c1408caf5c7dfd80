"""Every code block of the documents runs: Python as it stands, commands or at least their flags.

Blocks of one page run in their order and share their names, as a reader types them. A block that is
neither is listed with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from PIL import Image

from quire.checkpoints.embedded import ASSETS
from quire.cli.main import cli
from quire.quantizing.scheme import read_rules
from quire.server.access.authentication import read_key_file
from quire.store.preset_file import read_preset_file
from tests.commands import environment, fork, run_quire
from tests.first_layers import first_layers
from tests.servers import start_server
from tests.sizes import sized
from tools.random_adapter import random_adapter
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "native/*.md", "deploy/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
ADDRESS = "http://127.0.0.1:8000"
#: Blocks that nothing can run: page and how they begin, and why.
NOT_RUN = {
    ("ARCHITECTURE.md", " "): "a drawing",
    ("docs/data_flow.md", " "): "a drawing",
    ("native/README.md", "include/"): "a drawing",
    ("docs/cluster.md", "stage 0"): "what --dry-run prints",
    ("docs/cluster.md", "ray start"): "of an environment of its own: scripts/test_ray",
    ("docs/cluster.md", "python -m tools.ray_cluster"): "the same",
    ("docs/anthropic.md", "import anthropic"): "of an environment of its own: tests/clients",
    ("docs/anthropic.md", "export "): "settings of other programs",
    ("docs/server.md", "loading: "): "what the server prints",
    ("docs/speculation.md", "tokens of a round"): "what quire calc spec prints",
    ("docs/terminal.md", ""): "recorded by scripts/record_terminal",
}
#: Commands that are run with the files and the server of the fixtures; others' flags are parsed.
RUN = {"generate", "convert", "calc", "ask", "eval", "quantize", "imatrix"}
#: Of those, what is made shorter, and how.
SHORT = {
    "generate": ("--max-tokens", "4"),
    "eval": ("--max-tokens", "200"),
    "imatrix": ("--samples", "8"),
    "quantize": ("--samples", "8"),
}
#: Pages that quantize quire-tiny: the small circle has them quantize its first two layers of six.
QUANTIZING = sized({"docs/pretrained.md"}, set[str]())
#: Methods that take no samples.
UNCALIBRATED = {"rtn", "fp8"}
#: What a block of a page stands on that the text around it says.
PRELUDES = {
    "docs/server.md": f'''
import json, urllib.request
class response:
    def iter_lines():
        body = {{"messages": [{{"role": "user", "content": "hi"}}], "stream": True}}
        request = urllib.request.Request(
            "{ADDRESS}/v1/chat/completions",
            json.dumps(body).encode(),
            {{"content-type": "application/json"}},
        )
        return (line.rstrip(b"\\n") for line in urllib.request.urlopen(request))
''',
}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language and its lines."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason(self) -> str | None:
        """Why it is not run; None when it is."""
        found = (why for (page, start), why in NOT_RUN.items() if self._is(page, start))
        return next(found, None)

    def _is(self, page: str, start: str) -> bool:
        return page == self.page and self.text.startswith(start)


def read_blocks() -> Iterator[Block]:
    for path in DOCUMENTS:
        page, start, language = str(path.relative_to(ROOT)), 0, ""
        lines = path.read_text("utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if line.startswith("```") and not start:
                start, language = number, line.removeprefix("```").strip()
            elif line.startswith("```"):
                text = "\n".join(lines[start : number - 1])
                yield Block(page, start, language, text)
                start = 0
        assert not start, f"{page}:{start}: the block does not end"


BLOCKS = list(read_blocks())
PYTHON = [block for block in BLOCKS if block.language == "python" and block.reason is None]
PYTHON_PAGES = sorted({block.page for block in PYTHON})
SHELL = [
    block for block in BLOCKS if block.language not in ("python", "toml") and block.reason is None
]


@pytest.fixture(scope="module")
def server(device: str) -> Iterator[ServeProcess]:
    arguments = ["quire-tiny", "--device", device, "--memory", "256MiB", "--threads", "1"]
    with start_server(arguments) as process:
        process.wait_ready()
        yield process


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    random_checkpoint(folder / "my-model", PRESETS["tiny-llama"])
    random_adapter(folder / "my-model", folder / "adapters" / "sql")
    first_layers(ASSETS / "quire-tiny", folder / "first-layers", 2)
    (folder / "text.txt").write_text(40 * "The quick brown fox jumps over the lazy dog.\n")
    line = '{"question": "2 + 2?", "choices": ["4", "5"], "answer": 0}'
    (folder / "questions.jsonl").write_text(line)
    (folder / "chats.jsonl").write_text(20 * '{"text": "The fox jumps over the lazy dog."}\n')
    Image.new("RGB", (64, 48), "red").save(folder / "picture.png")
    run(["quire", "convert", "./my-model", "model.gguf", "--type", "q8_0"], folder)
    return folder


def run(command: list[str], folder: Path) -> str:
    """Run a command to its end; return what it prints."""
    settings = {"PYTHONPATH": str(ROOT), "QUIRE_CACHE": str(folder / "cache")}  # names are made
    variables = environment(**settings)
    if command[0] == "quire":
        done = run_quire(*command[1:], cwd=folder, QUIRE_CACHE=settings["QUIRE_CACHE"])
    elif command[0] == sys.executable:
        done = fork(command, cwd=folder, timeout=240, env=variables)
    else:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=240, env=variables
        )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def commands(text: str) -> list[str]:
    """Return a shell block's lines, those that go on in the next one joined."""
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if shlex.split(line, comments=True)]


def parse_flags(words: list[str]) -> None:
    """Parse a command line of ``quire`` as the program does; run nothing."""
    words = [word.strip("[]") for word in words if word not in ("...", "[options]")]
    command: click.Command = cli
    context = cli.make_context("quire", list(words))
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        group = isinstance(command, click.Group)
        context = command.make_context(name, list(words), parent=context)
        assert group or not context.args


def check_command(line: str, desk: Path, server: ServeProcess) -> None:
    words = shlex.split(line, comments=True)
    words = words[:-1] if words[-1] == "&" else words
    name = words[0]
    if name == "quire" and words[1] in RUN:
        known = {"PATH": "quire-tiny", "PATH_OR_HUB_ID": "quire-tiny"}
        words = [known.get(word, word) for word in words]
        base_url = ["--base-url", server.address] if words[1] == "ask" else []
        short = () if UNCALIBRATED & set(words) else SHORT.get(words[1], ())
        words = [server.address if word == ADDRESS else word for word in words]
        assert run([*words, *short, *base_url], desk)
    elif name == "quire":
        parse_flags(words[1:])
    elif name == "curl":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        script = line.replace(ADDRESS, server.address).replace("curl ", "curl -sS --fail ", 1)
        assert run(["bash", "-o", "pipefail", "-c", script], desk)
    elif name == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif name == "pip":
        extras = re.findall(r"quire\[([\w,]+)\]", words[-1])
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(extras) <= set(project["optional-dependencies"]), line
    elif name.startswith("scripts/"):
        assert os.access(ROOT / name, os.X_OK), line
    elif name == "KEY":
        keys = desk / "keys"
        keys.write_text(line)
        assert len(read_key_file(str(keys))) == 1
    else:
        raise AssertionError(f"{name}: say how this is run, or list why it is not")


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_python_of_a_page_runs(page: str, desk: Path, server: ServeProcess) -> None:
    blocks = [block for block in PYTHON if block.page == page]
    script = "\n".join([PRELUDES.get(page, ""), *(block.text for block in blocks)])
    if page in QUANTIZING:
        assert '"quire-tiny"' in script
        script = script.replace('"quire-tiny"', '"./first-layers"')
    assert run([sys.executable, "-c", script.replace(ADDRESS, server.address)], desk)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_of_a_block_run(block: Block, desk: Path, server: ServeProcess) -> None:
    lines = commands(block.text)
    assert lines, block.text
    for line in lines:
        check_command(line, desk, server)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=str)
def test_a_preset_or_recipe_of_a_page_can_be_read(block: Block, tmp_path: Path) -> None:
    if "[[rule]]" in block.text:
        (tmp_path / "recipe.toml").write_text(block.text)
        assert read_rules(tmp_path / "recipe.toml")
        return
    (tmp_path / "tutor.jinja").write_text("{{ messages }}")
    (tmp_path / "preset.toml").write_text(block.text)
    assert read_preset_file(tmp_path / "preset.toml").preset.sampling


def test_every_reason_is_needed() -> None:
    for page, start in NOT_RUN:
        assert any(block._is(page, start) for block in BLOCKS), (page, start)
    assert len(PYTHON_PAGES) >= 6 and len(SHELL) >= 12
