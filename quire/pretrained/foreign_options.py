"""Options by the names that scripts know: what is done, what changes nothing, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.errors import ConfigError
from quire.system.log import get_logger

log = get_logger(__name__)

#: Why options of other libraries' kernels and cards have no use.
KERNELS = "kernels are chosen by the machine"
GPUS = "is not done: one process computes a model"


@dataclass(frozen=True, slots=True)
class ForeignOption:
    """One option of a function of another library.

    Attributes:
        default: Value of an option that is not given.
        why: The reason why another value is refused, or changes nothing; empty for an option that
            is served.
        neutral: Values that ask for nothing more; the default is one.
        is_refused: Whether other values are an error.
    """

    default: Any = None
    why: str = ""
    neutral: tuple[Any, ...] = ()
    is_refused: bool = True

    def read(self, where: str, name: str, value: Any) -> None:
        """Refuse a value, or say that it changes nothing.

        Args:
            where: The function, for messages.
            name: The option's name.
            value: The value as given.

        Raises:
            ConfigError: The value asks for what is not done.
        """
        if not self.why or any(_same(value, known) for known in (self.default, *self.neutral)):
            return
        if self.is_refused:
            raise ConfigError(f"[{where}] {name} {self.why}; got {value!r:.80}. Leave it out.")
        log.warning("[%s] %s=%.80r changes nothing: %s", where, name, value, self.why)


def done(default: Any = None) -> ForeignOption:
    """Return an option that does what it says."""
    return ForeignOption(default)


def refused(why: str, default: Any = None, *neutral: Any) -> ForeignOption:
    """Return an option of which other values are an error."""
    return ForeignOption(default, why, neutral)


def idle(why: str, default: Any = None) -> ForeignOption:
    """Return an option that changes no result, whatever it is."""
    return ForeignOption(default, why, is_refused=False)


def read_options(
    where: str, known: Mapping[str, ForeignOption], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the value of every option.

    Args:
        where: The function, for messages.
        known: All options of the function.
        given: Options that the caller gave.

    Raises:
        ConfigError: A name is unknown, or a value asks for what is not done.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"[{where}] an option must be one that is known; got {unknown[0]}.")
    for name, value in given.items():
        known[name].read(where, name, value)
    return {name: option.default for name, option in known.items()} | dict(given)


def _same(value: Any, known: Any) -> bool:
    """Tell whether values are equal; numbers are whatever their type, but truth is no number."""
    numbers = isinstance(value, int | float) and isinstance(known, int | float)
    alike = numbers and isinstance(value, bool) == isinstance(known, bool)
    return (alike or type(value) is type(known)) and bool(value == known)
