"""Schemes of matrices: the settings of a run, and a recipe's rules for some matrices."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.quantization.producers.float8 import SCALES
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantizing.methods import BITS, METHODS, Method, methods_with
from quire.system.regular_files import read_regular_text

#: Beyond it the weights that stay take more memory than the others.
MOST_SPARSE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """A matrix's method and settings; :func:`create_scheme` fills in what a method decides.

    Attributes:
        method: One of :data:`~quire.quantizing.methods.METHODS`.
        bits: Bits of a code, one of the method's choices.
        group_size: Inputs that share a scale, 16 or a multiple of 32; -1 for all of a row.
        symmetric: Whether groups have no zeros.
        act_order: Whether GPTQ takes inputs by their size.
        group_aware: Whether GPTQ takes groups by their largest input, and a group's inputs by their
            size.
        true_sequential: Whether GPTQ calibrates a matrix on what the quantized ones before it in
            its layer make of the text.
        duo_scaling: Whether AWQ looks at the sizes of weights, too.
        clip: Whether AWQ looks for smaller ranges of groups than those of their largest weights.
        damping: Damping of GPTQ and QuIP#, as a share of the mean square of the inputs.
        scales: Weights that share a scale in FP8: a row (``channel``), all (``tensor``) or a
            ``block`` of 128 x 128.
        static_inputs: Whether FP8 has one scale for all inputs of a matrix, seen in calibration
            text.
        smoothing: Share of the range of inputs that weights take over in SmoothQuant.
        double_quant: Whether scales of NF4 and FP4 are rounded to bytes.
        sparse: Share of weights that tables of rows leave floats.
    """

    method: str = "gptq"
    bits: int = 4
    group_size: int = 128
    symmetric: bool = True
    act_order: bool = False
    group_aware: bool = False
    true_sequential: bool = False
    duo_scaling: bool = False
    clip: bool = True
    damping: float = 0.01
    scales: str = "channel"
    static_inputs: bool = False
    smoothing: float = 0.5
    double_quant: bool = True
    sparse: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that no matrix can have.

        Raises:
            ConfigError: A setting is out of range; it is named.
        """
        method = _method(self.method)
        for name in SETTINGS:
            value = getattr(self, name)
            if name in method.fixed:
                assert value == method.fixed[name], (self.method, name, value)
            elif name not in method.settings and value != DEFAULTS[name]:
                raise _refuse_setting(name, self.method)
        if self.bits not in method.bits:
            whose = "" if method.bits == BITS else f" with --method {self.method}"
            raise _refuse("bits", f"be one of {_listed(method.bits)}{whose}", self.bits)
        size = self.group_size
        if size != -1 and size != 16 and (size < 32 or size % 32):
            raise _refuse("group_size", "be 16, a multiple of 32, or -1 for whole rows", size)
        if self.scales not in SCALES:
            raise _refuse("scales", f"be one of {_listed(SCALES)}", self.scales)
        if self.static_inputs and self.scales == "block":
            raise _refuse("static-inputs", "come with --scales channel or tensor", self.scales)
        if self.act_order and self.group_aware:
            raise _refuse("group-aware", "come without --act-order", "both")
        if not 0 < self.damping <= 1:
            raise _refuse("damping", "be over 0 and at most 1", self.damping)
        if not 0 <= self.smoothing <= 1:
            raise _refuse("smoothing", "be from 0 to 1", self.smoothing)
        if not 0 <= self.sparse <= MOST_SPARSE:
            raise _refuse("sparse", f"be from 0 to {MOST_SPARSE}", self.sparse)

    @property
    def asks_inputs(self) -> bool:
        """Whether it takes calibration text to make such a matrix."""
        return METHODS[self.method].asks_inputs or self.static_inputs

    @property
    def default_format(self) -> str:
        """The name of the stored format where none is asked for."""
        return "fp8" if self.scales == "block" else METHODS[self.method].formats[0]

    @property
    def grid(self) -> IntegerGrid:
        """The codes; plain rounding does not look for better ones than the largest weight's."""
        search = self.method != "rtn" and self.clip
        return IntegerGrid(self.bits, max(0, self.group_size), self.symmetric, search)

    def changed(self, settings: Mapping[str, Any]) -> QuantizationScheme:
        """Return a scheme with other settings; another method keeps those that both take.

        Raises:
            ConfigError: A setting is not taken or out of range; it is named.
        """
        method = settings.get("method", self.method)
        both = set(METHODS[self.method].settings) & set(_method(method).settings)
        kept = {name: getattr(self, name) for name in both}
        given = {name: value for name, value in settings.items() if name != "method"}
        return create_scheme(method, kept | given)

    def __str__(self) -> str:
        taken = {*METHODS[self.method].settings}
        parts = [self.method]
        if "bits" in taken:
            parts.append(f"{self.bits} bits")
        if "group_size" in taken:
            whole = self.group_size == -1
            parts.append("whole rows" if whole else f"groups of {self.group_size}")
        parts += ["asymmetric"] if "symmetric" in taken and not self.symmetric else []
        parts += ["act-order"] if self.act_order else []
        parts += ["group-aware order"] if self.group_aware else []
        parts += ["duo scaling"] if self.duo_scaling else []
        parts += ["not clipped"] if not self.clip else []
        parts += ["true-sequential"] if self.true_sequential else []
        parts += [f"a scale for each {self.scales}"] if "scales" in taken else []
        parts += ["a scale for all inputs"] if self.static_inputs else []
        parts += [f"strength {self.smoothing:g}"] if "smoothing" in taken else []
        parts += [f"{self.sparse:.2%} sparse"] if self.sparse else []
        plain = "double_quant" in taken and not self.double_quant
        parts += ["scales not rounded"] if plain else []
        return ", ".join(parts)


#: Fields of a scheme but the method, with what they are where nothing is said.
DEFAULTS = {
    field.name: field.default for field in fields(QuantizationScheme) if field.name != "method"
}
SETTINGS = tuple(DEFAULTS)


def create_scheme(method: str, settings: Mapping[str, Any]) -> QuantizationScheme:
    """Return the scheme of a method.

    Args:
        method: One of :data:`~quire.quantizing.methods.METHODS`.
        settings: Fields that were given; the method has defaults for others that it takes.

    Raises:
        ConfigError: The method does not take a setting, or it is out of range; it is named.
    """
    known = _method(method)
    for name in settings:
        if name not in known.settings:
            raise _refuse_setting(name, method)
    return QuantizationScheme(method=method, **{**known.settings, **settings, **known.fixed})


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a recipe for some matrices.

    Attributes:
        match: A pattern of module names, as of a shell.
        settings: Fields of :class:`QuantizationScheme` that differ from the run's; None to leave
            them floats.
    """

    match: str
    settings: tuple[tuple[str, Any], ...] | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The schemes of a model's matrices.

    Attributes:
        default: Scheme of matrices that no rule fits.
        rules: Rules, of which the first that fits a matrix counts.
        takes_head: Whether the output head is quantized, too; else it is where a rule names it and
            no other matrix.
    """

    default: QuantizationScheme
    rules: tuple[Rule, ...] = ()
    takes_head: bool = False

    def asks_head(self, head: str) -> bool:
        """Tell whether the output head, a module's name, is to be quantized."""
        named = any(rule.match == head and rule.settings is not None for rule in self.rules)
        return self.takes_head or named

    def scheme_of(self, module: str) -> QuantizationScheme | None:
        """Return how a matrix is quantized, None where it stays floats."""
        for rule in self.rules:
            if fnmatchcase(module, rule.match):
                if rule.settings is None:
                    return None
                return self.default.changed(dict(rule.settings))
        return self.default

    @property
    def uses_inputs(self) -> bool:
        """Whether some matrix may have a scheme that asks for calibration text."""
        others = [self.default.changed(dict(r.settings)) for r in self.rules if r.settings]
        return any(scheme.asks_inputs for scheme in (self.default, *others))

    def check_rules(self, modules: Sequence[str]) -> None:
        """Refuse rules that fit nothing.

        Raises:
            ConfigError: A rule fits no matrix; its pattern is named.
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

    A table has ``match`` and fields of :class:`QuantizationScheme`, or ``skip = true``.

    Raises:
        ConfigError: The file cannot be read, or a rule has a field that is unknown or wrong.
    """
    try:
        values = tomllib.loads(read_regular_text(path))
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
    known = {field.name: type(field.default) for field in fields(QuantizationScheme)}
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
    given = {name: value for name, value in settings.items() if name != "method"}
    takes = [name for name, method in METHODS.items() if given.keys() <= method.settings.keys()]
    create_scheme(settings.get("method", (takes or [*METHODS])[0]), given)
    return Rule(rule["match"], tuple(settings.items()))


def _method(name: str) -> Method:
    if name not in METHODS:
        raise _refuse("method", f"be one of {_listed(METHODS)}", name)
    return METHODS[name]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _refuse_setting(name: str, method: str) -> ConfigError:
    flag = {"symmetric": "asymmetric"}.get(name, name)
    return _refuse(flag, f"come with --method {_listed(methods_with(name))}", method)


def _refuse(name: str, rule: str, got: object) -> ConfigError:
    return ConfigError(f"[quantize] --{name.replace('_', '-')} must {rule}; got {got}.")
