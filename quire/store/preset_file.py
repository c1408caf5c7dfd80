"""The TOML file that ``quire create`` reads."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.store.manifests import Preset, check_messages, check_sampling
from quire.system.regular_files import read_regular_text

KEYS = {
    "base": str, "revision": str, "system": str, "template": str, "sampling": dict,
    "messages": list,
}  # fmt: skip
_KINDS = {str: "text", dict: "a table", list: "a list of tables"}


@dataclass(frozen=True, slots=True)
class PresetFile:
    """Contents of a file.

    Attributes:
        base: The model to start from; a path begins where the command runs, as everywhere.
        revision: Branch, tag or commit of a hub id.
        preset: Settings that go with the model.
        notes: Sentences on settings that do nothing here.
    """

    base: str
    revision: str | None
    preset: Preset
    notes: tuple[str, ...] = ()


def read_preset_file(path: Path) -> PresetFile:
    """Read a file.

    Raises:
        ConfigError: The file is not TOML, a key is unknown, missing or of another type, a sampling
            default is out of range, or the template cannot be read.
    """
    try:
        values: dict[str, Any] = tomllib.loads(read_regular_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"[create] {path} must be a readable TOML file; got {error}.") from error
    unknown = ", ".join(sorted(set(values) - set(KEYS)))
    if unknown:
        raise ConfigError(f"[create] {path} may hold {', '.join(KEYS)}; got {unknown}.")
    for key, value in values.items():
        if not isinstance(value, KEYS[key]):
            raise ConfigError(
                f"[create] {path}: {key} must be {_KINDS[KEYS[key]]}; got {value!r:.80}."
            )
    if not values.get("base"):
        raise ConfigError(f'[create] {path} must name a base; got none. Add base = "quire-tiny".')
    template = path.parent / values["template"] if "template" in values else None
    try:
        source = read_regular_text(template) if template is not None else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"[create] {path}: template must be a file; got {error}.") from error
    sampling = check_sampling(values.get("sampling", {}), f"{path}: sampling")
    messages = check_messages(values.get("messages", ()), f"{path}: messages")
    preset = Preset(values.get("system"), source, sampling, messages)
    return PresetFile(values["base"], values.get("revision"), preset)
