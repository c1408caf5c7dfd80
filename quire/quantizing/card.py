"""The model card of a quantized checkpoint: what was done, from what, and how far off it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.core.plurals import counted
from quire.quantizing.quantization_run import Result
from quire.quantizing.scheme import QuantizationScheme


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """Facts for a model card that only the caller knows.

    Attributes:
        source: The source as it was named.
        command: The whole command.
        language: Language of the command.
        version: Quire's version.
        calibration: Origin and amount of the calibration text; empty without one.
        measured: Lines of figures that were measured; empty where nothing was.
    """

    source: str
    command: str
    language: str = "bash"
    version: str
    calibration: str = ""
    measured: Sequence[str] = ()


def model_card(facts: CardFacts, result: Result, format_name: str) -> str:
    """Return the text of ``README.md``."""
    schemes = _counted(result.schemes)
    parts = [
        "---",
        f"base_model: {facts.source}",
        f"tags: [quantized, {format_name}]",
        "---",
        f"# {Path(facts.source).name}, quantized",
        f"Made by Quire {facts.version} from `{facts.source}`:",
        f"```{facts.language}\n{facts.command}\n```",
        f"Stored as {format_name}: {schemes}. All other tensors are those of the source.",
    ]
    if facts.calibration:
        parts.append(f"Calibrated on {facts.calibration}.")
    if result.notices:
        parts += ["What differs from what was asked for:"]
        parts += ["\n".join(f"- {notice}." for notice in result.notices)]
    parts += ["## Measured", *(facts.measured or ["Quality was not measured: `quire eval` does."])]
    parts += ["## Error of each layer", _error_text(bool(facts.calibration)), _table(result.errors)]
    return (
        "\n\n".join(parts)
        .replace("---\n\nbase", "---\nbase")
        .replace("\n\ntags", "\ntags")
        .replace("]\n\n---", "]\n---")
        + "\n"
    )


def _error_text(calibrated: bool) -> str:
    if calibrated:
        return (
            "Of the outputs of each matrix over the calibration text: the square of the error over "
            "the square of the output, in decibels. Less is better."
        )
    return (
        "Of each matrix: the square of the error over the square of the weights, in decibels. Less "
        "is better."
    )


def _counted(schemes: Mapping[str, QuantizationScheme]) -> str:
    counts: dict[str, int] = {}
    for scheme in schemes.values():
        counts[str(scheme)] = counts.get(str(scheme), 0) + 1
    return "; ".join(
        f"{counted(count, 'matrix', 'matrices')} by {name}" for name, count in counts.items()
    )


def _table(errors: Mapping[str, float]) -> str:
    """Return a row for each layer and a column for each kind of matrix; experts are averaged."""
    cells: dict[str, dict[str, list[float]]] = {}
    kinds: dict[str, None] = {}
    for module, error in errors.items():
        found = re.search(r"\.(\d+)\.(.*)", module)
        layer, kind = (found[1], found[2]) if found else ("", module)
        kind = re.sub(r"\.\d+\.", ".*.", kind)
        kinds[kind] = None
        cells.setdefault(layer, {}).setdefault(kind, []).append(error)
    lines = ["| layer | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for layer, row in cells.items():
        shown = [_decibels(row[kind]) if kind in row else "" for kind in kinds]
        lines.append(f"| {layer} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _decibels(errors: Sequence[float]) -> str:
    mean = float(np.mean(errors))
    return f"{10 * np.log10(mean):.1f}" if mean > 0 else "none"
