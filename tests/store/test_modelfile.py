"""Modelfiles of Ollama: what is taken, what is noted, and what is refused."""

from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.store.manifests import Preset
from quire.store.modelfile import is_modelfile, read_modelfile, write_modelfile

PATH = Path("/models/tutor/Modelfile")
TEXT = '''
# a tutor
FROM ./base.gguf
SYSTEM """You are a tutor.
Be brief."""
PARAMETER temperature 0.3
parameter num_predict 64
PARAMETER repeat_penalty 1.1
PARAMETER repeat_last_n 64
PARAMETER stop "<end>"
PARAMETER stop User:
PARAMETER num_ctx 4096
PARAMETER mirostat 2
TEMPLATE {% for m in messages %}{{ m.content }}{% endfor %}
MESSAGE user What is 1+1?
MESSAGE assistant """2"""
LICENSE """MIT
"""
'''


def test_what_is_written_is_read_again():
    preset = Preset(
        'You say "yes".\nBe brief.', "{% for m in messages %}\n{{ m.content }}{% endfor %}",
        {"temperature": 0.3, "top_k": 4, "max_tokens": None, "repetition_penalty": 1.1,
         "stop": ["<end>", "\n", "User:"]},
        ({"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}),
    )  # fmt: skip
    made = read_modelfile(write_modelfile("qwen3:0.6b", preset), PATH)
    assert (made.base, made.preset, made.notes) == ("qwen3:0.6b", preset, ())


def test_all_instructions_are_read():
    made = read_modelfile(TEXT, PATH)
    assert made.base == "/models/tutor/base.gguf"
    preset = made.preset
    assert preset.system == "You are a tutor.\nBe brief."
    assert preset.sampling == {
        "temperature": 0.3, "max_tokens": 64, "repetition_penalty": 1.1, "repeat_last_n": 64,
        "stop": ["<end>", "User:"],
    }  # fmt: skip
    assert preset.template == "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert preset.messages == (
        {"role": "user", "content": "What is 1+1?"},
        {"role": "assistant", "content": "2"},
    )
    assert made.notes == (
        "PARAMETER num_ctx is the server's setting: quire serve --max-model-len 4096",
        "PARAMETER mirostat does nothing here",
        "LICENSE is not kept",
    )


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("FROM qwen3:0.6b", "qwen3:0.6b"),
        ("from ../m", "/models/tutor/../m"),
        ('FROM "a b"', "a b"),
        ("FROM x\nPARAMETER num_predict -1", "x"),
    ],
)
def test_a_base_is_a_name_or_a_path_from_where_the_file_lies(text, base):
    assert read_modelfile(text, PATH).base == base


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must name a base; got none. Add FROM quire-tiny."),
        ("FROM x\nTEMPLATE {{ .Prompt }}", "line 2: TEMPLATE must be in Jinja; got Go's template"),
        ('FROM x\nTEMPLATE """{{- if .System }}\n{{ end }}"""', "got Go's template language."),
        ("FROM x\nADAPTER ./lora", "line 2: ADAPTER must be left out; got ./lora."),
        ("FROM x\nPARAMETER top_p high", "PARAMETER top_p must be a number; got 'high'."),
        ("FROM x\nPARAMETER top_p 7", "[top_p]"),
        ("FROM x\nMESSAGE system Hi", "MESSAGE[0] must"),
        ("FROM x\nSYSTEM Hi\nBe brief.", "line 3 must begin with one of FROM, SYSTEM"),
        ('FROM x\nSYSTEM """Hi', 'line 2: """ must end; got no second.'),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_line(text, said):
    with pytest.raises(ConfigError) as error:
        read_modelfile(text, PATH)
    assert said in str(error.value)


def test_modelfiles_are_told_from_toml():
    assert is_modelfile(TEXT) and is_modelfile("from x")
    assert not is_modelfile('# x\nsystem = "FROM"\nbase = "x"')
    assert not is_modelfile("[sampling]\n") and not is_modelfile("") and not is_modelfile("base =")
