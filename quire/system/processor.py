"""Names this machine's processor, so that what was measured on one is not taken for another's."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
#: Fields of /proc/cpuinfo that tell processors of one name apart.
NUMBERS = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU revision")
#: Names of ARM's processors, which /proc/cpuinfo does not give, by (implementer, part).
#: Source: arch/arm64/include/asm/cputype.h of Linux.
ARM_NAMES = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0xC0, 0xAC3): "Ampere-1",
}


def read_processor(cpuinfo: Path = CPUINFO) -> str:
    """Return name and numbers of the first processor in ``cpuinfo``, or what Python calls it."""
    found = cpu_fields(_read(cpuinfo))
    if not found:
        return platform.processor() or platform.machine()
    name = found.get("model name", platform.machine())
    return ", ".join([name, *(f"{key} {found[key]}" for key in NUMBERS if key in found)])


def name_processor(cpuinfo: Path = CPUINFO) -> str:
    """Return what people call the first processor in ``cpuinfo``, as far as that is known."""
    found = cpu_fields(_read(cpuinfo))
    part = arm_part(found)
    if part is None:
        return found.get("model name", platform.processor() or platform.machine())
    return ARM_NAMES.get(part, f"{platform.machine()}, part {part[1]:#x} of {part[0]:#x}")


def cpu_fields(cpuinfo: str) -> dict[str, str]:
    """Return the first processor's fields of a text like /proc/cpuinfo."""
    pairs = (line.partition(":") for line in cpuinfo.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def arm_part(fields: dict[str, str]) -> tuple[int, int] | None:
    """Return implementer and part of an ARM processor, a key of :data:`ARM_NAMES`; else None."""
    try:
        return int(fields["CPU implementer"], 16), int(fields["CPU part"], 16)
    except (KeyError, ValueError):
        return None


def _read(cpuinfo: Path) -> str:
    try:
        return cpuinfo.read_text()
    except OSError:
        return ""
