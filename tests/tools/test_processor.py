"""What results are called after: the kind of processor, read from a text like /proc/cpuinfo."""

from __future__ import annotations

import pytest

from benchmarks import processor, results

AMD = "vendor_id\t: AuthenticAMD\ncpu family\t: {}\nmodel\t\t: {}\nflags\t\t: fpu avx2"
INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {}\nflags\t\t: avx2 {}"
ARM = "CPU implementer\t: 0x41\nCPU part\t: {}\nFeatures\t: fp asimd asimddp"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (AMD.format(26, 2), "zen5"),
        (AMD.format(25, 1), "zen3"),
        (AMD.format(25, 17), "zen4"),
        (AMD.format(25, 97), "zen4"),
        (AMD.format(25, 80), "zen3"),
        (AMD.format(23, 49), "zen2"),
        (AMD.format(23, 1), "zen"),
        (INTEL.format(143, "avx512f amx_int8"), "sapphire-rapids"),
        (INTEL.format(85, "avx512f"), "skylake-server"),
        (INTEL.format(85, "avx512f avx512_vnni"), "cascade-lake"),
        (ARM.format("0xd40"), "neoverse-v1"),
    ],
)
def test_kinds(text, name):
    assert processor.name_kind(text + "\n\nprocessor\t: 1\nmodel\t: 0") == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (INTEL.format(255, "avx512f avx512_vnni"), "avx512vnni"),
        (AMD.format(99, 1), "avx2"),
        (ARM.format("0xfff"), "asimddp"),
    ],
)
def test_an_unknown_processor_is_called_after_its_newest_instructions(text, name):
    assert processor.name_kind(text) == name


def test_a_text_without_any_of_it_still_gives_a_name():
    assert processor.name_kind("") and processor.instructions("") == []


def test_a_result_file_of_this_machine():
    machine = results.machine()
    assert machine["cpu"] and machine["kind"] == processor.kind()
    assert results.per_processor("limits") == f"limits_{machine['kind']}"
