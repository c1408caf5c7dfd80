"""``quire generate``: streamed text, JSON lines, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.cli.conftest import LONG
from tests.commands import COMMAND, environment
from tools.hostile_pictures import picture
from tools.random_checkpoint import PRESETS, random_checkpoint

GREEDY = ("--temperature", "0", "--max-tokens", "8")
PROMPTS = ("--prompt", "one", "--prompt", "number two")


def lines(stdout: str) -> list[dict]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_json_has_one_object_per_prompt_in_order(quire, model):
    result = quire("generate", str(model), *GREEDY, *PROMPTS, "--json")
    assert result.returncode == 0, result.stderr
    first, second = lines(result.stdout)
    assert (first["prompt"], second["prompt"]) == ("one", "number two")
    assert first["num_output_tokens"] == len(first["token_ids"]) == 8
    assert first["finish_reason"] == "length"


def test_text_is_what_json_says_and_nothing_else(quire, model):
    expected = lines(quire("generate", str(model), *GREEDY, *PROMPTS, "--json").stdout)
    result = quire("generate", str(model), *GREEDY, *PROMPTS)
    assert result.stdout == "".join(item["text"] + "\n" for item in expected)
    assert "8 tokens, first after" in result.stderr


def test_prompt_from_standard_input(quire, model):
    result = quire(
        "generate", str(model), *GREEDY, "--prompt", "-", "--json", stdin="from a pipe\n"
    )
    assert lines(result.stdout)[0]["prompt"] == "from a pipe"


def test_chat_uses_the_template(quire, model):
    result = quire("generate", str(model), *GREEDY, "--prompt", "Hi", "--chat", "--json")
    assert lines(result.stdout)[0]["prompt"] == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--prompt", "x", "--temperature", "-1"),
        ("--prompt", "x", "--top-p", "0"),
        ("--prompt", "x", "--block-size", "0"),
    ],
)
def test_misuse(quire, model, args):
    result = quire("generate", str(model), *args)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr


def test_prompt_longer_than_the_context_is_refused_with_counts(quire, model):
    result = quire("generate", str(model), "--max-model-len", "64", "--prompt", "word " * 200)
    assert (result.returncode, result.stdout) == (1, "")
    assert "64" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_limit_by_default_gives_way_to_the_context(quire, model):
    result = quire("generate", str(model), "--max-model-len", "16", "--prompt", "12345", "--json")
    assert lines(result.stdout)[0]["num_output_tokens"] <= 11, result.stderr
    result = quire(
        "generate", str(model), "--max-model-len", "16", "--prompt", "12345", "--max-tokens", "12"
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert "got 5 + 12 = 17" in result.stderr


def test_interrupt_ends_with_130(long_model):
    command = [*COMMAND, "generate", str(long_model), "--prompt", "x", "--max-tokens", "16000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **LONG}
    # Greedy, so that this model is known not to stop by itself within that time.
    with subprocess.Popen([*command, "--temperature", "0"], **pipes, env=environment()) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == b"quire: interrupted\n"


def test_reader_that_goes_away_is_no_traceback(long_model):
    command = [*COMMAND, "generate", str(long_model), "--prompt", "x", "--max-tokens", "16000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **LONG}
    with subprocess.Popen([*command, "--temperature", "0"], **pipes, env=environment()) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=60)
    assert (process.returncode, errors) == (1, b"")


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    """A checkpoint of random weights that reads pictures."""
    pytest.importorskip("PIL")
    path = tmp_path_factory.mktemp("llava") / "tiny-llava"
    random_checkpoint(path, PRESETS["tiny-llava"])
    return path


def test_pictures_stand_before_each_prompt(quire, llava, tmp_path):
    files = [tmp_path / "one.png", tmp_path / "two"]
    for seed, file in enumerate(files):
        file.write_bytes(picture(seed=seed))
    asked = [quire("generate", str(llava), *GREEDY, *PROMPTS, "--json", "--chat")]
    for given in (files[:1], files):
        shown = [word for file in given for word in ("--image", str(file))]
        asked.append(quire("generate", str(llava), *GREEDY, *PROMPTS, "--json", *shown))
    numbers = [[line["num_prompt_tokens"] for line in lines(answer.stdout)] for answer in asked]
    assert len(numbers[0]) == 2, asked[0].stderr
    for none, one, two in zip(*numbers, strict=True):
        assert 16 <= one - none < 20 and 16 <= two - one < 20


def test_a_picture_needs_a_model_that_reads_it_and_a_file(quire, model, llava, tmp_path):
    file = tmp_path / "words.png"
    file.write_text("no picture")
    asked = ("--image", str(file), "--prompt", "What colour is it?")
    result = quire("generate", str(model), *asked)
    assert result.returncode == 1 and "This model takes text only" in result.stderr
    result = quire("generate", str(llava), *asked)
    assert result.returncode == 1 and "must be one of PNG, JPEG" in result.stderr
    result = quire("generate", str(llava), "--image", "none.png", "--prompt", "What?")
    assert result.returncode == 2 and "none.png" in result.stderr


def test_an_empty_answer_of_a_chat_model_is_explained(quire):
    """A chat model that was asked without its template answered nothing, and no line said why."""
    limits = ("--max-tokens", "1", "--stop", "a")
    found = quire("generate", "quire-tiny", "-p", "The cat sat", *limits)
    assert found.stdout == "\n"
    assert "generate completes text and uses no chat template. Add --chat" in found.stderr
