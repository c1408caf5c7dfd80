"""Names this machine's processor, so that what was measured on one is not taken for another's."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
#: What tells processors apart that share a name, as /proc/cpuinfo calls it.
NUMBERS = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU revision")


def read_processor(cpuinfo: Path = CPUINFO) -> str:
    """Return name and numbers of the first processor in ``cpuinfo``, or what Python calls it."""
    try:
        first = cpuinfo.read_text().split("\n\n", 1)[0]
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in first.splitlines())
    found = {key.strip(): value.strip() for key, _, value in pairs}
    name = found.get("model name", platform.machine())
    return ", ".join([name, *(f"{key} {found[key]}" for key in NUMBERS if key in found)])
