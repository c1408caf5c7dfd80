"""The probes give plausible rates on every instruction set and put the threads back."""

from __future__ import annotations

from benchmarks.kernels.probe import measure_machine
from quire.kernels.cpu.native import native


def test_probes_measure_and_restore_the_threads(isa: str) -> None:
    before = native.num_threads()
    speed = measure_machine(2)
    assert native.num_threads() == before
    assert (speed.threads, speed.isa) == (2, isa)
    # Any x86-64 core reads 100 MB/s and multiplies 100 Mflop/s; none does 1000 times what one can.
    assert 1e8 < speed.read_bytes_per_second < 1e13
    assert 1e8 < speed.fma_flops < 1e14
    assert (speed.dot_flops > 0) == (isa in ("avx512bf16", "amx"))
    assert (speed.int8_ops > 0) == (isa != "scalar")
