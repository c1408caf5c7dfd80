"""``adapter_config.json`` of a PEFT folder; unsupported settings are refused by name. R rank."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ModelLoadError
from quire.system.regular_files import open_regular

CONFIG = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20
#: Larger ranks and factors are no number that an adapter has.
MAX_NUMBER = 1e9
#: A key of ``rank_pattern`` or ``alpha_pattern``: PEFT takes any regular expression.
_PATTERN = re.compile(r"\^?[\w.]+")
#: Options that change what is computed, and what asks for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "lora_bias": (False, None),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "ensure_weight_tying": (False, None),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "arrow_config": (None,),
    "kappa_tune_config": (None,),
    "monteclora_config": (None,),
}
#: Ways to begin a training that change the base's own matrices.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class PeftSettings:
    """A folder's configuration, as far as it concerns its tensors.

    Attributes:
        path: The folder.
        values: Fields of the configuration, as they are stored.
    """

    path: Path
    values: dict[str, Any]

    @property
    def has_biases(self) -> bool:
        """Whether biases were trained."""
        return self.values.get("bias") in ("all", "lora_only")

    @property
    def is_dora(self) -> bool:
        """Whether matrices have magnitudes."""
        return self.values.get("use_dora") is True

    @property
    def has_parameters(self) -> bool:
        """Whether parameters were trained by name, as those that hold a layer's experts."""
        return bool(self.values.get("target_parameters"))

    @property
    def turns_parameters(self) -> bool:
        """Whether experts stored (out, in) were taken for (in, out), as up to PEFT 0.19.0."""
        found = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", str(self.values.get("peft_version")))
        return found is None or tuple(map(int, found.groups())) < (0, 19, 1)

    def saves(self, module: str) -> bool:
        """Return whether a module is there whole."""
        names: list[str] = self.values.get("modules_to_save") or []
        return module.rpartition(".")[2] in names

    def rank(self, *names: str) -> float:
        """Return R of a module or parameter, which may have several names."""
        return self._number("r", "rank_pattern", names)

    def scale(self, rank: int, *names: str) -> float:
        """Return ``alpha / R``, or ``alpha / sqrt(R)`` of rsLoRA."""
        alpha = self._number("lora_alpha", "alpha_pattern", names)
        return alpha / (math.sqrt(rank) if self.values.get("use_rslora") is True else rank)

    def _number(self, key: str, patterns: str, names: tuple[str, ...]) -> float:
        """Return a number of a module: its own one, else that of all."""
        value, own = self.values.get(key), self.values.get(patterns) or {}
        if not isinstance(own, dict):
            raise self.refused(patterns, "an object", own)
        for pattern, number in own.items():
            # As PEFT writes them for experts that it puts together.
            plain = pattern.removeprefix(r".*\.").replace(r"\.", ".")
            if not _PATTERN.fullmatch(plain):
                rule = "of names of modules, without other signs"
                raise self.refused(patterns, rule, pattern)
            whole = plain.removeprefix("^")
            if any(n == whole or (whole == plain and n.endswith(f".{plain}")) for n in names):
                value = number
                break
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < MAX_NUMBER
        ):
            raise self.refused(key, "a number above 0", value)
        return float(value)

    def refused(self, name: str, rule: str, got: Any) -> ModelLoadError:
        """Return the error for a setting."""
        return ModelLoadError(
            f"[adapter] {self.path}: {name} must be {rule}; got {str(got):.80}. Other kinds are "
            "not served: merge the adapter into its model with PEFT, and serve that."
        )


def read_settings(path: Path) -> PeftSettings:
    """Read a folder's configuration.

    Raises:
        ModelLoadError: The configuration cannot be read, or has an unsupported setting.
    """
    file = path / CONFIG
    try:
        with open_regular(file) as opened:
            text = opened.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise unreadable(file, error) from None
    try:
        values = json.loads(text) if len(text) <= MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ModelLoadError(
            f"[adapter] {file} must be a JSON object of at most {MAX_CONFIG_BYTES} bytes; got "
            "something else."
        )
    settings = PeftSettings(path, values)
    _check(settings, values)
    return settings


def _check(settings: PeftSettings, values: dict[str, Any]) -> None:
    if values.get("peft_type") != "LORA":
        raise settings.refused("peft_type", "LORA", values.get("peft_type"))
    for name, neutral in _NEUTRAL.items():
        if values.get(name, neutral[0]) not in neutral:
            raise settings.refused(name, json.dumps(neutral[0]), values[name])
    if values.get("bias", "none") not in ("none", "all", "lora_only"):
        raise settings.refused("bias", "none, all or lora_only", values["bias"])
    if values.get("use_dora") not in (True, False, None):
        raise settings.refused("use_dora", "true or false", values["use_dora"])
    for name in ("modules_to_save", "target_parameters"):
        names = values.get(name)
        if names is not None and not (
            isinstance(names, list) and all(isinstance(one, str) for one in names)
        ):
            raise settings.refused(name, "a list of names", names)
    initial = values.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_CHANGES_BASE):
        raise settings.refused("init_lora_weights", "of a kind that keeps the base", initial)


def unreadable(path: Path, error: OSError) -> ModelLoadError:
    """Return the error for a file that is not there or cannot be opened."""
    return ModelLoadError(
        f"[adapter] {path} must be readable; got {error.strerror}. Give the folder that PEFT's "
        "save_pretrained wrote."
    )
