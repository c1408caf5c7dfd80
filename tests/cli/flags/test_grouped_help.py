"""Help by group and by word."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from quire.cli.chat.generate import generate
from quire.cli.flags.engine_flags import ConfigOption
from quire.cli.main import cli
from quire.cli.serve import serve
from quire.settings.option import GROUPS


def show(*arguments: str, command: click.Command = serve) -> str:
    result = CliRunner().invoke(command, arguments, terminal_width=100)
    assert result.exit_code == 0, result.output
    return result.output


def flags_in(text: str) -> set[str]:
    """Return the flags that have a row."""
    rows = re.findall(r"^  (?:-\w+, )?(--\S+)", text, re.MULTILINE)
    return {row.replace("--[no-]", "--") for row in rows}


def flags_of(group: str) -> set[str]:
    return {p.opts[0] for p in serve.params if isinstance(p, ConfigOption) and p.group == group}


def test_the_short_help_names_every_group_with_a_common_flag() -> None:
    text = show("--help")
    titles = [
        f"{title} ({len(flags_of(key))} flags: --help={key}):" for key, title in GROUPS.items()
    ]
    assert [line for line in text.splitlines() if "--help=" in line and "(" in line] == titles
    assert text.index("Options:") < text.index(titles[0]), "the command's own come first"
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_shown_whole(group: str) -> None:
    text = show(f"--help={group}")
    assert flags_in(text) == flags_of(group)
    assert "Answer HTTP requests" not in text


def test_a_word_finds_flags_by_name_and_text_and_by_names_of_other_programs() -> None:
    assert {"--kv-cache-size", "--use-cache", "--prefix-cache-isolation"} <= flags_in(
        show("--help=cache")
    )
    assert "--port" not in show("--help=cache")
    assert flags_in(show("--help=ctx_size")) == {"--max-model-len"}
    assert flags_in(show("--help=--KV_cache_size")) >= {
        "--kv-cache-size",
        "--num-gpu-blocks-override",
    }
    assert flags_in(show("--help=cors")) == {"--allowed-origins"}


@pytest.mark.parametrize("word", ["zebra", "", "--"])
def test_a_word_that_no_flag_has_is_misuse(word: str) -> None:
    result = CliRunner().invoke(serve, [f"--help={word}"])
    assert result.exit_code == 2
    assert "--help= must be a group (options, model, memory, " in result.output


def test_commands_without_a_server_have_the_engine_s_groups() -> None:
    text = show("--help", command=generate)
    assert (
        "--help=memory" in text
        and "(1 flag: --help=observability)" in text
        and "--help=server" not in text
    )
    assert "--prompt" in text[: text.index("Model (")]
    assert flags_in(show("--help=adapters", command=generate)) < flags_of("adapters")


def test_the_command_help_takes_a_topic_too() -> None:
    asked = show("help", "serve", "kv", "cache", "size", command=cli)
    assert flags_in(asked) >= {"--kv-cache-size"}
    assert flags_in(show("help", "serve", "memory", command=cli)) == flags_of("memory")


def test_what_follows_two_hyphens_asks_for_no_help() -> None:
    result = CliRunner().invoke(generate, ["--", "--help=memory"])
    assert "Memory:" not in result.output


def test_all_flags_come_with_the_environment() -> None:
    text = show("--help-all")
    assert "Environment:" in text and "QUIRE_CACHE" in text
    assert set().union(*map(flags_of, GROUPS)) <= flags_in(text)
