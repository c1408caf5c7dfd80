"""How each matrix is quantized: the settings of a run, and a recipe's rules for some matrices."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.quantization.producers.integer_grid import IntegerGrid

METHODS = ("rtn", "gptq", "awq")
#: Those that ask what a matrix's inputs are.
CALIBRATED = ("gptq", "awq")
BITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a matrix is quantized.

    Attributes:
        method: One of :data:`METHODS`.
        bits: One of :data:`BITS`.
        group_size: Inputs that share a scale, 16 or a multiple of 32; -1 for all of a row.
        symmetric: Without zeros of groups.
        act_order: GPTQ takes inputs by their size.
        damping: Of GPTQ, as a share of the mean square of the inputs.
    """

    method: str = "gptq"
    bits: int = 4
    group_size: int = 128
    symmetric: bool = True
    act_order: bool = False
    damping: float = 0.01

    def __post_init__(self) -> None:
        """Refuse what no matrix can have.

        Raises:
            ConfigError: Naming the setting.
        """
        if self.method not in METHODS:
            raise _refuse("method", f"be one of {', '.join(METHODS)}", self.method)
        if self.bits not in BITS:
            raise _refuse("bits", f"be one of {', '.join(map(str, BITS))}", self.bits)
        size = self.group_size
        if size != -1 and size != 16 and (size < 32 or size % 32):
            raise _refuse("group-size", "be 16, a multiple of 32, or -1 for whole rows", size)
        if not 0 < self.damping <= 1:
            raise _refuse("damping", "be over 0 and at most 1", self.damping)
        if self.act_order and self.method != "gptq":
            raise _refuse("act-order", "come with --method gptq", self.method)

    @property
    def grid(self) -> IntegerGrid:
        """The codes; plain rounding does not look for better ones than the largest weight's."""
        return IntegerGrid(
            self.bits, max(0, self.group_size), self.symmetric, search=self.method != "rtn"
        )

    def __str__(self) -> str:
        groups = "whole rows" if self.group_size == -1 else f"groups of {self.group_size}"
        parts = [f"{self.method}, {self.bits} bits, {groups}"]
        parts += [] if self.symmetric else ["asymmetric"]
        parts += ["act-order"] if self.act_order else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a recipe says of some matrices.

    Attributes:
        match: A pattern of module names, as of a shell.
        settings: Fields of :class:`Scheme` that differ from the run's; None to leave them floats.
    """

    match: str
    settings: tuple[tuple[str, Any], ...] | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which scheme each matrix of a model has.

    Attributes:
        default: Of matrices that no rule fits.
        rules: The first that fits a matrix counts.
    """

    default: Scheme
    rules: tuple[Rule, ...] = ()

    def scheme_of(self, module: str) -> Scheme | None:
        """Return how a matrix is quantized, None where it stays floats."""
        for rule in self.rules:
            if fnmatchcase(module, rule.match):
                if rule.settings is None:
                    return None
                return _scheme_with(self.default, dict(rule.settings))
        return self.default

    @property
    def uses_inputs(self) -> bool:
        """Whether some matrix may have a method that is calibrated."""
        methods = [dict(rule.settings or ()).get("method") for rule in self.rules]
        return any(method in CALIBRATED for method in (self.default.method, *methods))

    def check_rules(self, modules: Sequence[str]) -> None:
        """Refuse rules that fit nothing.

        Raises:
            ConfigError: Naming the pattern.
        """
        for rule in self.rules:
            if not any(fnmatchcase(module, rule.match) for module in modules):
                raise ConfigError(
                    f"[quantize] a pattern must fit a matrix of the model; got {rule.match}. "
                    f"Names are such as {modules[0]}."
                )


def skip_rules(patterns: Sequence[str]) -> tuple[Rule, ...]:
    """Return rules that leave matrices floats."""
    return tuple(Rule(pattern, None) for pattern in patterns)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read a recipe: a TOML file of ``[[rule]]`` tables.

    A table has ``match`` and fields of :class:`Scheme`, or ``skip = true``.

    Raises:
        ConfigError: The file cannot be read, or a rule has a field that is unknown or wrong.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"[quantize] --recipe must be TOML; got {path}: {reason}.") from None
    rules = values.pop("rule", None)
    if values or not isinstance(rules, list) or not rules:
        raise ConfigError(
            f"[quantize] --recipe must hold [[rule]] tables and nothing else; got {path}."
        )
    return tuple(_read_rule(number, rule, path) for number, rule in enumerate(rules, 1))


def _read_rule(number: int, rule: Any, path: Path) -> Rule:
    where = f"rule {number} of {path}"
    if not isinstance(rule, dict) or not isinstance(rule.get("match"), str):
        raise ConfigError(f"[quantize] {where} must have match, a pattern of names; got {rule!r}.")
    settings = {name: value for name, value in rule.items() if name != "match"}
    if settings.get("skip") is True and len(settings) == 1:
        return Rule(rule["match"], None)
    known = {field.name: type(field.default) for field in fields(Scheme)}
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(
                f"[quantize] {where} must have fields of match, skip, {', '.join(known)}; got "
                f"{name}."
            )
        kind = known[name]
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits:
            raise ConfigError(
                f"[quantize] {name} of {where} must be of type {kind.__name__}; got {value!r}."
            )
    # Refused now rather than when the first matrix is reached.
    _scheme_with(Scheme(), settings)
    return Rule(rule["match"], tuple(settings.items()))


def _scheme_with(default: Scheme, settings: Mapping[str, Any]) -> Scheme:
    """Return a scheme with some fields changed; another method does not take over act-order."""
    changes = dict(settings)
    if changes.get("method", default.method) != "gptq":
        changes.setdefault("act_order", False)
    return replace(default, **changes)


def _refuse(name: str, rule: str, got: object) -> ConfigError:
    return ConfigError(f"[quantize] --{name} must {rule}; got {got}.")
