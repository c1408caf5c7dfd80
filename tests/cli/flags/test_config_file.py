"""``--config FILE``: what it sets, what it refuses, and who wins."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from quire.cli.flags.engine_flags import EngineCommand, engine_flags
from quire.settings.config import EngineConfig
from quire.system.regular_files import SETTINGS_BYTES


@click.command(cls=EngineCommand)
@engine_flags
def show(config: EngineConfig) -> None:
    """Print what arrived."""
    click.echo(f"{config.model.model} {config.model.max_model_len}")
    click.echo(f"{config.scheduler.batching_type} {config.cache.enable_prefix_caching}")
    for method in config.speculative.parsed().methods:
        click.echo(f"{method.method} {method.num_speculative_tokens}")


def run(tmp_path: Path, text: str, *arguments: str) -> tuple[int, str]:
    path = tmp_path / "engine.yaml"
    path.write_bytes(text.encode("latin-1"))
    result = CliRunner().invoke(show, ["--config", str(path), *arguments])
    return result.exit_code, result.output


def test_file_sets_flags(tmp_path):
    """The batching mode is a key of the file."""
    text = "model: here\nmax-model-len: 4k\nbatching_type: static\nenable-prefix-caching: false\n"
    assert run(tmp_path, text) == (0, "here 4096\nstatic False\n")
    assert run(tmp_path, "batching_type: inflight") == (0, "quire-tiny None\ninflight True\n")


def test_the_command_line_wins_wherever_it_stands(tmp_path):
    text = "model: here\nmax-model-len: 4k\nbatching_type: static\n"
    arguments = ("there", "--max-model-len", "8", "--enable-prefix-caching")
    assert run(tmp_path, text, *arguments) == (0, "there 8\nstatic True\n")


@pytest.mark.parametrize(
    "text",
    [
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n",
        "speculative_config:\n- method: ngram\n  num_speculative_tokens: 3\n",
        """speculative-config: '{"method": "ngram", "num_speculative_tokens": 3}'""",
        "sc: {method: ngram}\nspec-tokens: 3\n",
    ],
)
def test_json_of_a_flag_may_be_yaml(tmp_path, text):
    code, output = run(tmp_path, text)
    assert code == 0 and output.endswith("\nngram 3\n")


def test_a_list_of_a_repeatable_flag_stays_one(tmp_path):
    text = "lora-modules:\n- {name: a, path: b}\n- c=d\n"
    code, output = run(tmp_path, text)
    assert code == 0
    assert '--lora-modules {"name": "a", "path": "b"} is of quire serve' in output
    assert "--lora-modules c=d is of quire serve" in output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no-such-flag: 1", "unknown flags: no_such_flag"),
        ("config: other.yaml", "unknown flags: config"),
        ("- a\n- b", "must hold flag: value lines"),
        ("a: [", "must be YAML"),
        ("\xff\xfe: 1", "must be YAML"),
        ("max-model-len: many", "whole number"),
        ("batching_type: sometimes", "inflight"),
        ("speculative-config: {method: magic}", '"method" must be one of ngram'),
        ("max-model-len: {a: 1}", "whole number"),
        ("block-size: 0", "--block-size must be at least 1"),
    ],
)
def test_wrong_files_are_misuse(tmp_path, text, words):
    code, output = run(tmp_path, text)
    assert code == 2
    assert words in " ".join(output.split())


def test_an_unknown_key_names_the_nearest(tmp_path):
    code, output = run(tmp_path, "maxx-model-len: 4k\n")
    assert code == 2 and "unknown flags: maxx_model_len. Did you mean max_model_len?" in output


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: " + "[" * 5000, "recursion"),
        (LAUGHS + "speculative-config: {method: *a8}", "aliases make more than 100,000 values"),
        ("model: &a [*a]", "aliases make more than 100,000 values"),
        ("# " + "x" * SETTINGS_BYTES, "more than 16 MiB"),
    ],
    ids=["deep", "laughs", "circle", "long"],
)
def test_a_file_that_grows_is_refused_in_a_sentence(tmp_path, text, words):
    """Brackets were a traceback, and nine lines of aliases 43 million values."""
    code, output = run(tmp_path, text)
    assert code == 2 and "engine.yaml must be YAML; " in output and words in output
    assert "Traceback" not in output


def test_a_device_is_read_up_to_a_bound():
    result = CliRunner().invoke(show, ["--config", "/dev/zero"])
    assert result.exit_code == 2 and "more than 16 MiB" in result.output
