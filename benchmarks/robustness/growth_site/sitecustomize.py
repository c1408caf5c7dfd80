"""Python runs this first in each process that has it on its path."""

from benchmarks.robustness import growth_probe

growth_probe.start()
