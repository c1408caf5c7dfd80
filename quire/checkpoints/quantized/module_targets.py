"""Modules that settings of a quantized checkpoint are for: by name, by pattern or by class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.quantized.name_patterns import NamePattern


@dataclass(frozen=True, slots=True)
class ModuleTarget:
    """Modules that settings are for, by name, pattern or class.

    Attributes:
        text: Text of the target in the configuration.
        fits: Function that returns whether a module is meant.
        is_pattern, is_class: Whether the text is a pattern, or a class; a name is neither.
    """

    text: str
    fits: Callable[[str], bool]
    is_pattern: bool = False
    is_class: bool = False

    def rank(self, module: str) -> tuple[bool, bool, bool, str]:
        """Return a sort key, which is least for the most specific target of a module."""
        return self.is_class, self.is_pattern, self.text != module, self.text


def read_target(fields: ConfigFields, name: str, target: str) -> ModuleTarget:
    """Read a target of compressed-tensors: ``re:PATTERN``, ``Linear``, or a name.

    Args:
        fields: The settings that the target stands in.
        name: The name of its field.
        target: The target.

    Raises:
        ModelLoadError: The pattern is not one, or matching it could take long.
    """
    if target.startswith("re:"):
        pattern = read_pattern(fields, name, target.removeprefix("re:"))
        return ModuleTarget(target, pattern.match, is_pattern=True)
    if target == "Linear":
        return ModuleTarget(
            target, lambda module: not module.endswith("embed_tokens"), is_class=True
        )
    return ModuleTarget(target, lambda module: module == target or module.endswith(f".{target}"))


def read_pattern(fields: ConfigFields, name: str, text: str) -> NamePattern:
    """Read a regular expression for names of modules.

    Args:
        fields: The settings that the pattern stands in.
        name: The name of its field.
        text: The expression.

    Raises:
        ModelLoadError: The text is no pattern, or matching it could take long.
    """
    try:
        return NamePattern(text)
    except ValueError as error:
        raise fields.error(name, f"must be regular expressions of bounded cost ({error})") from None
