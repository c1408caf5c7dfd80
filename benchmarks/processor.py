"""Names the kind of processor, so that results of different machines stand side by side.

Owns the names of microarchitectures; knows nothing of results.
"""

from __future__ import annotations

import platform

from quire.system.processor import ARM_NAMES, CPUINFO, arm_part, cpu_fields

#: Flags that decide which kernels run, as /proc/cpuinfo calls them.
INSTRUCTIONS = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16",
    "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
#: Intel's family 6 by model number. Source: arch/x86/include/asm/intel-family.h of Linux.
INTEL = {
    0x3C: "haswell", 0x3F: "haswell", 0x45: "haswell", 0x46: "haswell",
    0x3D: "broadwell", 0x47: "broadwell", 0x4F: "broadwell", 0x56: "broadwell",
    0x4E: "skylake", 0x5E: "skylake", 0x55: "skylake-server", 0x8E: "kaby-lake", 0x9E: "kaby-lake",
    0x6A: "ice-lake-server", 0x6C: "ice-lake-server", 0x7D: "ice-lake", 0x7E: "ice-lake",
    0x8C: "tiger-lake", 0x8D: "tiger-lake", 0x8F: "sapphire-rapids", 0xCF: "emerald-rapids",
    0xAD: "granite-rapids", 0xAE: "granite-rapids", 0xAF: "sierra-forest",
    0x97: "alder-lake", 0x9A: "alder-lake", 0xB7: "raptor-lake", 0xBA: "raptor-lake",
}  # fmt: skip


def instructions(cpuinfo: str) -> list[str]:
    """Return those of :data:`INSTRUCTIONS` that the processor has."""
    found = cpu_fields(cpuinfo)
    flags = found.get("flags", found.get("Features", "")).split()
    return [name for name in INSTRUCTIONS if name in flags]


def name_kind(cpuinfo: str) -> str:
    """Return a short name of the microarchitecture, such as ``zen5`` or ``sapphire-rapids``.

    One that is in no table here is called after its newest instructions, then after the machine.
    """
    found = cpu_fields(cpuinfo)
    family, model = int(found.get("cpu family", 0)), int(found.get("model", 0) or 0)
    if found.get("vendor_id") == "AuthenticAMD":
        name = _amd(family, model)
    elif found.get("vendor_id") == "GenuineIntel" and family == 6:
        name = INTEL.get(model)
        if name == "skylake-server" and "avx512_vnni" in instructions(cpuinfo):
            name = "cascade-lake"
    else:
        part = arm_part(found)
        name = ARM_NAMES[part].lower() if part in ARM_NAMES else None
    newest = [flag.replace("_", "") for flag in instructions(cpuinfo)[-1:]]
    return name or (newest or [platform.machine()])[0]


def _amd(family: int, model: int) -> str | None:
    if family == 0x17:
        return "zen" if model < 0x30 else "zen2"
    if family == 0x19:
        is_zen4 = 0x10 <= model < 0x20 or 0x60 <= model < 0x80 or model >= 0xA0
        return "zen4" if is_zen4 else "zen3"
    return "zen5" if family == 0x1A else None


def kind() -> str:
    """Return the name of this machine's kind of processor."""
    return name_kind(read_cpuinfo())


def read_cpuinfo() -> str:
    """Return what Linux says of the processors; nothing elsewhere."""
    return CPUINFO.read_text() if CPUINFO.exists() else ""
