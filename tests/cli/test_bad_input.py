"""Damaged models and wrong prompts: one line that says what is wrong, from Python and the shell."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quire import LLM
from quire.core.errors import ModelLoadError
from tests.commands import COMMAND, environment
from tests.preforked import Preforked

Damage = Callable[[Path], object]


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def garble_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:8] + b"?" * 100 + path.read_bytes()[108:])


def change_config(**fields: object) -> Damage:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def remove_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.fixture
def damaged(model: Path, tmp_path: Path) -> Callable[[Damage], Path]:
    """Return a function that gives a damaged copy of the model."""

    def copy(damage: Damage) -> Path:
        folder = tmp_path / "damaged"
        shutil.copytree(model, folder)
        damage(folder)
        return folder

    return copy


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_weights, "the file is cut off. The file is damaged or incomplete"),
        (garble_weights, "must have a header in JSON"),
        (change_config(intermediate_size=96), "layers.0.mlp.down_proj.weight must have shape"),
        (change_config(architectures=["FooForCausalLM"]), "LlamaForCausalLM is nearest"),
        (remove_tokenizer, "got neither tokenizer.json nor tokenizer.model"),
    ],
    ids=["truncated", "corrupt", "shapes", "architecture", "tokenizer"],
)
def test_a_damaged_model_is_one_line(quire, damaged, device, damage, words):
    folder = damaged(damage)
    with pytest.raises(ModelLoadError) as caught:
        LLM(str(folder), device=device, memory=64 * 2**20)
    result = quire("generate", str(folder), "--prompt", "x", "--memory", "64MiB")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"quire: {caught.value}\n"
    assert words in result.stderr


def test_the_server_does_not_start_on_a_damaged_model(quire, damaged):
    result = quire("serve", str(damaged(cut_weights)), "--port", "0", "--memory", "64MiB")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("quire: [load] ")
    assert "ready" not in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--prompt", ""), "a prompt must hold at least one token; got none"),
        (("--prompt", "a", "--prompt", ""), "a prompt must hold at least one token; got none"),
        (
            ("--prompt", "a" * 40, "--num-gpu-blocks-override", "3"),
            "must fit in the context length (32 tokens); got 40 prompt tokens",
        ),
        (("--prompt", "a", "--memory", "1KiB"), "Any of these would fit: --memory "),
    ],
    ids=["empty", "one of two empty", "blocks", "memory"],
)
def test_what_cannot_run_is_one_line(quire, model, args, words):
    result = quire("generate", str(model), *args)
    assert (result.returncode, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1 and words in result.stderr


@pytest.mark.parametrize("mode", ["strict", "surrogateescape"])
def test_bytes_that_are_no_text_are_told_in_words(model, mode):
    def run(*args: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        variables = environment(PYTHONIOENCODING=f"utf-8:{mode}")
        command = [*COMMAND, args[0], str(model), *args[1:], "--memory", "64MiB"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = Preforked(command, env=variables, **pipes)
        output, errors = process.communicate(stdin, timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    result = run("generate", "--prompt", "-", stdin=b"abc\xff")
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(b"quire: [tokenize] text must be valid Unicode; got 'abc")
    assert result.stderr.count(b"\n") == 1
    result = run("chat", "--max-tokens", "3", stdin=b"/set ignore_eos true\nabc\xff\nhi\n")
    _, first, second = result.stderr.splitlines()
    assert b"valid Unicode" in first and b"3 tokens" in second
    assert result.returncode == 0


def test_a_full_disk_is_one_line(model):
    with open("/dev/full", "w") as full:
        command = [*COMMAND, "generate", str(model), "--prompt", "x", "--memory", "64MiB"]
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=60, env=environment(), text=True
        )
    assert result.returncode == 1
    assert result.stderr == "quire: [Errno 28] No space left on device\n"
