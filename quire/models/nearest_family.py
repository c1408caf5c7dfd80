"""What to say of an architecture that nobody knows: the nearest known one, and what differs."""

from __future__ import annotations

from difflib import SequenceMatcher
from logging import LogRecord

from quire.core.errors import ModelLoadError, UnsupportedArchitectureError
from quire.models.config_fields import HARMLESS, NEUTRAL, ConfigFields, log
from quire.models.registry import FAMILIES

PLAINEST = "LlamaForCausalLM"
#: What a reader says of a field without which it does not go on.
REQUIRED = (" is required", " must be given")
#: Differences that are named.
MAX_NAMED = 8


def refuse_architecture(name: str, fields: ConfigFields) -> UnsupportedArchitectureError:
    """Return the error for an architecture, one sentence of the family whose fields are nearest.

    Args:
        name: That is not one of ``FAMILIES``.
        fields: Of its ``config.json``.
    """
    log.addFilter(_nothing)  # readers tell of options in parts of a configuration
    found = {family: _differences(family, fields) for family in FAMILIES}
    log.removeFilter(_nothing)
    # Where several are as near, the plainest is meant, or the one of the likest name; of another
    # kind of model, which lacks what all have, nothing else can be said.
    lacking = {family for family, named in found.items() if named and named[0].endswith(REQUIRED)}
    nearest = min(
        found.keys() - lacking or {PLAINEST},
        key=lambda each: (len(found[each]), each != PLAINEST, -_likeness(name, each), each),
    )
    named, more = found[nearest][:MAX_NAMED], len(found[nearest]) - MAX_NAMED
    differs = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    what = f"it differs by {differs}" if named else "no field of config.json tells them apart"
    return UnsupportedArchitectureError(
        f"[load] {fields.where}: architectures must name one that Quire knows; got {name}, to "
        f"which {nearest} is nearest: {what}. docs/models.md has all of them, and how one is added."
    )


def _differences(family: str, fields: ConfigFields) -> list[str]:
    """Return the fields that a family's reader does not know, or has no default for."""
    read = ConfigFields(fields.values, fields.where)
    missing = []
    try:
        FAMILIES[family].read_config(read)
    except ModelLoadError as error:
        missing = [str(error).partition(f"{fields.where}: ")[2].partition("; got")[0]]
    unread = set(read.values) - read.read - HARMLESS
    other = {key for key in unread if read.values[key] not in NEUTRAL.get(key, ())}
    # A reader that stopped has not come to all that it knows.
    return [*missing, *sorted(other)]


def _nothing(record: LogRecord) -> bool:
    return False


def _likeness(name: str, family: str) -> float:
    return SequenceMatcher(None, name, family).ratio()
