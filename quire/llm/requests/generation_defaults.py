"""A checkpoint's sampling defaults and end-of-sequence ids, from its folder or GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quire.checkpoints.gguf.gguf_file import open_gguf
from quire.core.errors import ConfigError, ModelLoadError
from quire.core.sampling_params import SamplingParams
from quire.system.regular_files import read_regular_text

#: The file's names of our settings; everything else in it steers other programs.
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}

#: A GGUF file's keys.
GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """A checkpoint's settings of generation.

    Attributes:
        sampling: Keywords of :class:`SamplingParams`.
        eos_token_ids: Ids that end a sequence, besides those of ``config.json``.
    """

    sampling: dict[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


def read_generation_config(
    folder: Path,
    mode: str,
    override: Mapping[str, Any] | None = None,
    *,
    recommended: Mapping[str, Any] | None = None,
) -> GenerationDefaults:
    """Read the file of ``folder``; without one there are no defaults.

    Args:
        folder: A checkpoint's folder, or a GGUF file, whose end-of-sequence ids are in its model's
            configuration.
        mode: ``auto`` reads it; ``none`` takes only the end-of-sequence ids.
        override: Settings in the file's names that take the place of the file's.
        recommended: Keywords of :class:`SamplingParams` that belong to the model's name and
            replace the file's; ``none`` leaves them out, too.

    Raises:
        ConfigError: Another ``mode``, or an override that is unknown or out of range.
        ModelLoadError: The file is damaged or a value is out of range.
    """
    if mode not in ("auto", "none"):
        raise ConfigError(f"[config] --generation-config must be auto or none; got {mode}.")
    found = _read_gguf(folder, mode) if folder.is_file() else _read_file(folder, mode)
    sampling = add_recommended(found.sampling, mode, override, recommended or {})
    return replace(found, sampling=sampling)


def add_recommended(
    sampling: Mapping[str, Any],
    mode: str,
    override: Mapping[str, Any] | None,
    recommended: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the defaults of a file with those that belong to a model's name.

    Args:
        sampling: The file's defaults.
        mode, override, recommended: The same as in :func:`read_generation_config`.

    Raises:
        ConfigError: An override is unknown or out of range.
    """
    named = recommended if mode == "auto" else {}
    return {**sampling, **named, **_read_override(override or {})}


def _read_override(values: Mapping[str, Any]) -> dict[str, Any]:
    unknown = ", ".join(sorted(set(values) - {*_NAMES, "do_sample"}))
    if unknown:
        raise ConfigError(
            f"[config] --override-generation-config may hold {', '.join(_NAMES)} and do_sample; "
            f"got {unknown}."
        )
    sampling = {_NAMES[name]: value for name, value in values.items() if name in _NAMES}
    if values.get("do_sample") is False:
        sampling["temperature"] = 0.0
    try:
        SamplingParams(**sampling)
    except ValueError as error:
        raise ConfigError(f"[config] --override-generation-config: {error}") from error
    return sampling


def _read_file(folder: Path, mode: str) -> GenerationDefaults:
    path = folder / "generation_config.json"
    if not path.exists():
        return GenerationDefaults()
    try:
        values = json.loads(read_regular_text(path))
        eos = values.get("eos_token_id")
        eos = eos if isinstance(eos, list) else [eos]
        eos_token_ids = tuple(int(token_id) for token_id in eos if token_id is not None)
        sampling = {
            ours: values[theirs]
            for theirs, ours in _NAMES.items()
            if values.get(theirs) is not None
        }
        if values.get("do_sample") is False:
            sampling["temperature"] = 0.0
        SamplingParams(**sampling)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).removesuffix(".")
        raise ModelLoadError(
            f"[load] {path} must hold generation settings; got {reason}. Repair or remove it."
        ) from error
    return GenerationDefaults(sampling if mode == "auto" else {}, eos_token_ids)


def _read_gguf(path: Path, mode: str) -> GenerationDefaults:
    if mode == "none":
        return GenerationDefaults()
    metadata = open_gguf(path).metadata
    sampling = {ours: metadata[key] for key, ours in GGUF_KEYS.items() if key in metadata}
    # The file's float32 has 7 digits; the others come from widening it.
    sampling = {k: float(f"{v:.7g}") if type(v) is float else v for k, v in sampling.items()}
    try:
        SamplingParams(**sampling)
    except ValueError as error:
        raise ModelLoadError(
            f"[load] {path} must hold sampling settings in range; got {error} "
            "Ignore them with --generation-config none."
        ) from error
    return GenerationDefaults(sampling)
