"""Settings of other engines that scripts pass and that have nothing to do here.

Each is taken with a line on why it does nothing, as long as the answers stay what they are without
it; one that would change them, or who may ask, is refused. Flags and keywords of ``LLM`` share the
tables, which are in ``other_programs.toml``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, get_args

from quire.core.errors import ConfigError
from quire.core.model.quantization_names import QUANTIZATIONS as OURS
from quire.core.model.quantization_names import QuantizationName, StoredName
from quire.settings.other_programs import tables


@dataclass(frozen=True, slots=True)
class KnownSetting:
    """A setting that is taken and does nothing, or is refused by name.

    Attributes:
        why: Text that follows the setting in the notice: why it changes nothing, or is refused.
        neutral: Values, as text, that ask for nothing.
        short: Other spellings of its flag.
        is_switch: Whether the setting is only on or off.
        least: The least value of a setting that is a whole number; None where it is something else.
        is_list: Whether the setting may be given several times.
        is_refused: Whether a value that asks for something is an error.
    """

    why: str
    neutral: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    is_switch: bool = False
    least: int | None = None
    is_list: bool = False
    is_refused: bool = False

    def notice(self, shown_name: str, shown: str, value: Any) -> str | None:
        """Return the line on a given value; None when it asks for nothing.

        Args:
            shown_name: The setting as the user wrote it.
            shown: Setting and value as the user wrote them.
            value: The value; None, False and empty ones ask for nothing.

        Raises:
            ConfigError: The value cannot be, or asks for what would change the answers.
        """
        if self.least is not None and value is not None and not _is_count(value, self.least):
            raise ConfigError(
                f"[config] {shown_name} must be a whole number of at least {self.least}; got "
                f"{value!r:.80}."
            )
        if value is None or value is False or value in ("", (), [], {}):
            return None
        if str(value) in self.neutral:
            return None
        if self.is_refused:
            raise ConfigError(f"[config] {shown_name} {self.why}; got {value!r:.80}. Leave it out.")
        return f"{shown} {self.why}."


_ROUNDED = "weights are floats, and rounded at load"
_FLOATS = "weights are floats, and stay so"
#: Other engines' quantizations and what is done with floats instead: name of ours, and why.
QUANTIZATIONS: dict[str, tuple[QuantizationName | None, str]] = {
    **dict.fromkeys(get_args(StoredName), (None, _FLOATS)),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round"), ("int4", _ROUNDED)),
    "fp8": ("int8", "the same bytes, and activations are rounded to 8 bits as well"),
    "bitsandbytes": ("nf4", _ROUNDED),
}
#: What files say where it is another name.
_METHODS = {"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "modelopt"}


def settle_quantization(
    asked: QuantizationName | StoredName | None, stored: str
) -> tuple[QuantizationName | None, str]:
    """Return what weights are rounded to at load, and what there is to say of it.

    Args:
        asked: The setting.
        stored: The method of the checkpoint; empty for floats.

    Returns:
        A quantization of ours, or None; and a line for the log, empty for nothing.

    Raises:
        ConfigError: The checkpoint has another method.
    """
    if asked is None or asked in OURS:
        return asked, ""
    if _METHODS.get(asked, asked) == stored:
        return None, ""
    if stored:
        raise ConfigError(
            f"[config] --quantization must be what the checkpoint has, {stored}; got {asked}. "
            "Leave it out."
        )
    ours, why = QUANTIZATIONS[asked]
    return (
        ours,
        f"--quantization {asked} {f'is {ours} here' if ours else 'changes nothing'}: {why}.",
    )


@functools.cache
def engine_settings() -> dict[str, KnownSetting]:
    """Return the flags of every command that loads an engine, keywords of ``LLM``, by name."""
    return _read("engine")


@functools.cache
def server_settings() -> dict[str, KnownSetting]:
    """Return the flags of ``quire serve`` alone, by name."""
    return _read("server")


def _read(table: str) -> dict[str, KnownSetting]:
    found = {}
    for name, row in tables()[table].items():
        words = {key: tuple(row.get(key, "").split()) for key in ("neutral", "short")}
        found[name] = KnownSetting(**{**row, **words})
    return found


def flag_name(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _is_count(value: Any, least: int) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and int(value) >= least
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
