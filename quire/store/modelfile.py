"""The Modelfile of Ollama, read and written; what it sets is in :mod:`manifests`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.store.manifests import SAMPLING, Preset, check_messages, check_sampling
from quire.store.preset_file import PresetFile

INSTRUCTIONS = ("FROM", "SYSTEM", "PARAMETER", "TEMPLATE", "MESSAGE", "ADAPTER", "LICENSE")
_LINE = re.compile(rf"\s*({'|'.join(INSTRUCTIONS)}|REQUIRES)\b[ \t]*(.*)", re.IGNORECASE)
_QUOTES = '"""'
#: Their names of sampling settings that have another one here.
_NAMES = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}
#: What the server decides, not the model.
_SERVER = {
    "num_ctx": "--max-model-len",
    "num_thread": "--threads",
    "num_batch": "--max-num-batched-tokens",
}
#: An action of Go's template language; Jinja's expressions begin with a name.
_GO = re.compile(r"\{\{-?\s*(?:[.$]|(?:if|range|end|else|with|define|template|block)\b)")


def is_modelfile(text: str) -> bool:
    """Tell a Modelfile from TOML by its first line that says something."""
    lines = (
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    )
    first = next(lines, "")
    return _LINE.match(first) is not None and not re.match(r"\s*\w+\s*=", first)


def read_modelfile(text: str, path: Path) -> PresetFile:
    """Read a Modelfile.

    Args:
        text: The whole text of the file.
        path: Path of the file: relative paths in it begin at its folder.

    Raises:
        ConfigError: An instruction is unknown or cannot be followed, or a value is out of range.
    """
    base = system = template = None
    sampling: dict[str, Any] = {}
    messages: list[dict[str, str]] = []
    notes: list[str] = []
    for number, name, value in _instructions(text, path):
        where = f"{path}, line {number}"
        if name == "FROM":
            base = _base(value, path)
        elif name == "SYSTEM":
            system = value
        elif name == "TEMPLATE":
            template = _jinja(value, where)
        elif name == "MESSAGE":
            role, _, content = value.partition(" ")
            messages.append({"role": role.lower(), "content": _unquoted(content.strip())})
        elif name == "PARAMETER":
            notes += _add_parameter(sampling, value, where)
        elif name == "ADAPTER":
            raise ConfigError(
                f"[create] {where}: ADAPTER must be left out; got {value}. A name has one model's "
                f"weights: add the adapter to them with quire merge, or serve it next to the model "
                f"with quire serve --enable-lora --lora-modules NAME={value}."
            )
        else:
            notes.append(f"{name} is not kept")
    if not base:
        raise ConfigError(f"[create] {path} must name a base; got none. Add FROM quire-tiny.")
    preset = Preset(
        system, template, check_sampling(sampling, f"{path}: PARAMETER"),
        check_messages(messages, f"{path}: MESSAGE"),
    )  # fmt: skip
    return PresetFile(base, None, preset, tuple(notes))


def write_modelfile(name: str, preset: Preset) -> str:
    """Return the Modelfile of a model with settings of its own, which :func:`read_modelfile` reads.

    Args:
        name: The model.
        preset: Settings to write.
    """
    theirs = {ours: name for name, ours in _NAMES.items()}
    lines = [f"# To build a new Modelfile based on this, replace FROM with:\n# FROM {name}\n"]
    lines.append(f"FROM {name}")
    for word, text in (("TEMPLATE", preset.template), ("SYSTEM", preset.system)):
        lines += [] if text is None else [f"{word} {_quoted(text)}"]
    for setting, value in preset.sampling.items():
        values = value if isinstance(value, list | tuple) else [value]
        if setting == "max_tokens" and value is None:
            values = [-1]
        for one in values if setting in SAMPLING else ():
            written = _quoted(one) if isinstance(one, str) else one
            lines.append(f"PARAMETER {theirs.get(setting, setting)} {written}")
    lines += [f"MESSAGE {one['role']} {_quoted(one['content'])}" for one in preset.messages]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return f"{_QUOTES}{text}{_QUOTES}"


def _instructions(text: str, path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, name in upper case and value of each instruction."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.match(line)
        if found is None:
            raise ConfigError(
                f"[create] {path}, line {number} must begin with one of "
                f"{', '.join(INSTRUCTIONS)}; got {line.strip()!r:.80}."
            )
        value = found[2].strip()
        at = value.find(_QUOTES)
        if at >= 0 and value.count(_QUOTES) == 1:
            for _, more in lines:
                value += f"\n{more}"
                if _QUOTES in more:
                    break
            else:
                raise ConfigError(f'[create] {path}, line {number}: """ must end; got no second.')
        yield number, found[1].upper(), _unquoted(value)


def _unquoted(value: str) -> str:
    value = value.strip()
    for quotes in (_QUOTES, '"'):
        if len(value) >= 2 * len(quotes) and value.startswith(quotes) and value.endswith(quotes):
            return value[len(quotes) : -len(quotes)]
    return value


def _base(value: str, path: Path) -> str:
    """Return a model, with a path from where the file lies."""
    near = path.parent / Path(value).expanduser()
    return str(near) if value.startswith(("./", "../", "~", "/")) or near.is_file() else value


def _jinja(template: str, where: str) -> str:
    if "{%" not in template and _GO.search(template):
        raise ConfigError(
            f"[create] {where}: TEMPLATE must be in Jinja; got Go's template language. Leave it "
            "out: the model's own template is used then."
        )
    return template


def _add_parameter(sampling: dict[str, Any], text: str, where: str) -> list[str]:
    """Add a setting; return notes about one that does nothing here.

    Raises:
        ConfigError: The value is not a number.
    """
    theirs, _, raw = text.partition(" ")
    name, value = _NAMES.get(theirs, theirs), _unquoted(raw)
    if theirs in _SERVER:
        return [
            f"PARAMETER {theirs} is the server's setting: quire serve {_SERVER[theirs]} {value}"
        ]
    if name not in SAMPLING:
        return [f"PARAMETER {theirs} does nothing here"]
    if name == "stop":
        sampling.setdefault(name, []).append(value)
        return []
    try:
        number = float(value)
    except ValueError as error:
        raise ConfigError(
            f"[create] {where}: PARAMETER {theirs} must be a number; got {value!r:.80}."
        ) from error
    whole = name in ("top_k", "repeat_last_n", "max_tokens", "seed")
    sampling[name] = int(number) if whole and number.is_integer() else number
    if name == "max_tokens" and number < 0:
        sampling[name] = None
    return []
