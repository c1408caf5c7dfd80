"""Settings of a checkpoint's vectors in sentence-transformers' files."""

from __future__ import annotations

import json
from pathlib import Path

from quire.checkpoints.config_fields import ConfigFields, read_json
from quire.core.errors import ModelLoadError, UnsupportedArchitectureError
from quire.core.model.pooling_config import PoolingConfig
from quire.system.regular_files import read_regular

#: Kinds of pooling of ours, by the fields of the file and by its newer one of words.
KINDS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
NAMED_KINDS = {"cls": "cls", "mean": "mean", "lasttoken": "last"}


def read_pooling(folder: Path) -> PoolingConfig | None:
    """Return what ``modules.json`` and the pooling module's ``config.json`` say, None without.

    Raises:
        ModelLoadError: A file is damaged.
        UnsupportedArchitectureError: A module or a kind of pooling is not implemented.
    """
    path = folder / "modules.json"
    if not path.exists():
        return None
    kind, normalize = None, False
    for module in _modules(path):
        name = module.text("type").rpartition(".")[2]
        if name == "Pooling":
            file = folder / Path(module.text("path")).name / "config.json"
            kind = _kind(ConfigFields(read_json(file), str(file)))
        elif name == "Normalize":
            normalize = True
        elif name not in ("Transformer", "Dropout"):
            raise UnsupportedArchitectureError(
                f"{module.error('type', 'must be Transformer, Pooling or Normalize')} Quire does "
                "not implement this module."
            )
    return PoolingConfig(kind=kind, normalize=normalize) if kind else None


def _modules(path: Path) -> list[ConfigFields]:
    try:
        modules = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"[load] {path} must be JSON; got {error}. Copy it again.") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelLoadError(f"[load] {path} must hold a list of modules; got another value.")
    return [ConfigFields(module, f"{path}: module {i}") for i, module in enumerate(modules)]


def _kind(fields: ConfigFields) -> str:
    if fields.has("pooling_mode"):
        kind = NAMED_KINDS.get(fields.text("pooling_mode"))
        if kind is None:
            raise _refused(fields, "pooling_mode")
        return kind
    chosen = [
        name
        for name in sorted(fields.values)
        if name.startswith("pooling_mode_") and fields.boolean(name)
    ]
    if len(chosen) != 1 or chosen[0] not in KINDS:
        raise _refused(fields, chosen[0] if chosen else "pooling_mode_cls_token")
    return KINDS[chosen[0]]


def _refused(fields: ConfigFields, name: str) -> UnsupportedArchitectureError:
    rule = f"must be the one kind of pooling, of {', '.join(NAMED_KINDS)}"
    return UnsupportedArchitectureError(
        f"{fields.error(name, rule)} Quire does not implement other kinds."
    )
