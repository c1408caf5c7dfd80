"""Traffic to and from one tier, for metrics."""

from __future__ import annotations

from quire.core.metrics import OFFLOAD_SIZE_BUCKETS, HistogramCounts, Samples


class Traffic:
    """Counters of bytes and seconds of one tier.

    Args:
        label: Name of the tier.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._bytes = {"load": 0, "store": 0}
        self._seconds = {"load": 0.0, "store": 0.0}
        self._sizes = {way: HistogramCounts(OFFLOAD_SIZE_BUCKETS) for way in self._bytes}

    def loaded(self, num_bytes: int, seconds: float) -> None:
        """Count blocks that were loaded from the tier in one go."""
        self._count("load", num_bytes, seconds)

    def stored(self, num_bytes: int, seconds: float) -> None:
        """Count blocks that were stored into the tier in one go."""
        self._count("store", num_bytes, seconds)

    def samples(self) -> Samples:
        """Return the counters by metric stem."""
        values: Samples = {}
        for way in self._bytes:
            tier = f'{{tier="{self._label}"}}'
            values[f"kv_offload_{way}_bytes{tier}"] = self._bytes[way]
            values[f"kv_offload_{way}_time{tier}"] = self._seconds[way]
            values[f"kv_offload_{way}_size{tier}"] = self._sizes[way].state()
        return values

    def _count(self, way: str, num_bytes: int, seconds: float) -> None:
        self._bytes[way] += num_bytes
        self._seconds[way] += seconds
        self._sizes[way].observe(num_bytes)
