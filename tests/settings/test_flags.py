"""What settings say of their flags."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from pathlib import Path

import pytest

from quire.server.server_options import ServerOptions
from quire.settings.flags import Flag, read_flags, setting_flags
from quire.settings.option import GROUPS, option, options_of
from quire.system import env

FLAGS = {**setting_flags(), **read_flags(ServerOptions)}


def flag(hint: object, default: object, text: str = "a text", **told: object) -> Flag:
    field = fields(make_dataclass("Some", [("some_name", hint, option(default, text, **told))]))[0]
    return Flag.read(field, hint)


def test_every_setting_has_a_group() -> None:
    assert {name: found.group for name, found in FLAGS.items() if found.group not in GROUPS} == {}
    assert {found.group for found in FLAGS.values()} == set(GROUPS)
    with pytest.raises(AssertionError):
        options_of("pages")


def test_every_flag_shows_its_default() -> None:
    for name, found in FLAGS.items():
        assert found.help.endswith("]") or "default" in found.help, name


def test_a_variable_that_a_flag_names_is_read() -> None:
    named = {found.told["env"] for found in FLAGS.values() if "env" in found.told}
    assert named == {"QUIRE_API_KEY", "OMP_NUM_THREADS"}
    source = Path(env.__file__).read_text()
    assert all(f'"{name}"' in source for name in named)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (flag(int, 16), "a text [16]"),
        (flag(int, 3 * 2**30), "a text [3GiB]"),
        (flag(int, 64 * 2**20), "a text [64MiB]"),
        (flag(int, 0), "a text [0]"),
        (flag(float, 300.0), "a text [300]"),
        (flag(bool, True), "a text [on]"),
        (flag(bool, False), "a text [off]"),
        (flag(str | None, None), "a text [unset]"),
        (flag(str | None, None, "a text; default: the model's"), "a text; default: the model's"),
        (flag(str | None, None, env="QUIRE_API_KEY"), "a text [unset; env QUIRE_API_KEY]"),
        (flag(tuple[str, ...], ()), "a text; repeatable [unset]"),
        (FLAGS["log_format"], "format of log lines (human, json) [human]"),
    ],
)
def test_the_line_in_the_help(found: Flag, text: str) -> None:
    assert found.help == text


def test_names_and_values() -> None:
    assert FLAGS["tensor_parallel_size"].names == ("--tensor-parallel-size", "-tp")
    assert FLAGS["enable_prefix_caching"].names[1] == "--enable-block-reuse"
    found = FLAGS["dtype"]
    assert found.choices == ("auto", "float32", "float16", "bfloat16")
    assert set(found.choices) < set(found.values) and "bf16" in found.values
    assert (FLAGS["max_model_len"].kind, FLAGS["max_model_len"].is_optional) == (int, True)
