"""A folder or GGUF file as a model with a name, which a server knows models by."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from quire.checkpoints.embedded import LISTED
from quire.core.errors import ConfigError
from quire.store.manifests import read_manifest
from quire.store.named_models import named_model
from quire.store.store import Store


def name_path(model: str) -> tuple[str, bool] | None:
    """Give a folder or file a name of its own, as ``quire copy`` does.

    Returns:
        The name, and whether it is new; None where it is not a path, or is a name already.

    Raises:
        ConfigError: The folder is an adapter.
        ModelLoadError: The path holds no model that can be loaded.
    """
    path = Path(model).expanduser()
    store = Store()
    if not path.exists() or store.find(model) is not None or named_model(model) is not None:
        return None
    path = path.resolve()
    if (path / "adapter_config.json").exists() and not (path / "config.json").exists():
        raise ConfigError(
            f"[run] {model} must be a model; got an adapter. Give the model that it was trained "
            f"for: quire run MODEL --lora {model}"
        )
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.name.removesuffix(".gguf")).strip("-.") or "model"
    for number in count(1):
        name = plain if number == 1 else f"{plain}-{number}"
        known = read_manifest(name)
        if known is not None and known.model == str(path):
            return name, False
        if known is None and named_model(name) is None and name not in LISTED:
            break
    store.copy(str(path), name)
    return name, True
