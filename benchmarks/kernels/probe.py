"""The machine's best rates, measured in under a second: the limits that kernels are held to."""

from __future__ import annotations

from dataclasses import dataclass

from quire.kernels.cpu.native import native


@dataclass(frozen=True, slots=True)
class ProbedRates:
    """Best rates of ``threads`` threads on the instruction set ``isa``.

    Attributes:
        threads: Compute threads that ran together.
        isa: The instruction set in use.
        read_bytes_per_second: Bytes read from memory, in huge pages.
        fma_flops: float32 multiply-adds, two operations each, per second.
        dot_flops: bfloat16 dot products, per second; 0 where the instruction is missing.
        int8_ops: Dot products of bytes summed in 32 bits, per second; 0 on ``scalar``.
    """

    threads: int
    isa: str
    read_bytes_per_second: float
    fma_flops: float
    dot_flops: float
    int8_ops: float


def measure_machine(threads: int) -> ProbedRates:
    """Measure with ``threads`` threads; nothing else should be running in the process."""
    before = native.num_threads()
    native.set_num_threads(threads)
    try:
        return ProbedRates(
            threads=threads,
            isa=native.isa(),
            read_bytes_per_second=native.measure_read(),
            fma_flops=native.measure_fma(),
            dot_flops=native.measure_dot(),
            int8_ops=native.measure_int8(),
        )
    finally:
        native.set_num_threads(before)
