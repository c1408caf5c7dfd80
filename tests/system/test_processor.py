"""A processor's name tells those apart that the system calls the same."""

from __future__ import annotations

from quire.system.processor import name_processor, read_processor

FIRST = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\nstepping\t: 8\n"
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd49\nCPU revision\t: 0\n"


def read(tmp_path, text):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    return read_processor(path)


def test_the_first_processor_counts(tmp_path):
    other = FIRST.replace("143", "85")
    assert read(tmp_path, f"{FIRST}\n{other}") == "Xeon, cpu family 6, model 143, stepping 8"
    assert read(tmp_path, other) != read(tmp_path, FIRST)


def test_arm_has_parts_instead_of_names(tmp_path):
    assert read(tmp_path, ARM).endswith("CPU implementer 0x41, CPU part 0xd49, CPU revision 0")


def test_arm_s_parts_have_names_for_people(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(ARM)
    assert name_processor(path) == "Neoverse-N2"
    path.write_text(ARM.replace("0xd49", "0xfff"))
    assert name_processor(path).endswith(", part 0xfff of 0x41")
    path.write_text(FIRST)
    assert name_processor(path) == "Xeon"


def test_without_the_file_there_is_a_name(tmp_path):
    assert read_processor(tmp_path / "none") and name_processor(tmp_path / "none")
    assert read_processor() == read_processor()
