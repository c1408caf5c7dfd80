"""A line, or a plane, through what is measured over and over, while it changes."""

from __future__ import annotations

#: A rate changes as one of this size does, if it is smaller: it may come back from nothing.
LEAST_RATE = 0.01


class DecayedFit:
    """``start + slope * x + rate * y``: a Kalman filter (Kalman 1960), no value below its least.

    Args:
        start, slope, rate: First values.
        spreads: Standard deviations of the three at first.
        changes: Standard deviations of their change from one measurement to the next. The rate's is
            a part of it, and counts where ``y`` is not 0.
        least_slope: Least value of the slope.

    Attributes:
        rate: The value of one ``y``.
    """

    def __init__(
        self,
        start: float,
        slope: float,
        rate: float,
        spreads: tuple[float, float, float],
        changes: tuple[float, float, float],
        least_slope: float = 0.0,
    ) -> None:
        self._start, self._slope, self.rate = start, slope, rate
        self._least_slope = least_slope
        a, b, c = (spread**2 for spread in spreads)
        self._variances, self._covariances = (a, b, c), (0.0, 0.0, 0.0)
        self._changes = [change**2 for change in changes]

    def at(self, x: float, y: float = 0.0) -> float:
        """Return what is expected at ``x`` and ``y``."""
        return self._start + self._slope * x + self.rate * y

    def observe(self, missed: float, noise: float, x: float, y: float = 0.0) -> None:
        """Correct the values by a measurement.

        Args:
            missed: The measurement less what was expected of it.
            noise: Standard deviation of a measurement there.
            x, y: The place of the measurement.
        """
        (a, b, c), (ab, ac, bc) = self._variances, self._covariances
        start_change, slope_change, rate_change = self._changes
        a, b = a + start_change, b + slope_change
        if y:
            c += rate_change * max(self.rate, LEAST_RATE) ** 2
        by_a, by_b, by_c = a + ab * x + ac * y, ab + b * x + bc * y, ac + bc * x + c * y
        total = by_a + by_b * x + by_c * y + noise**2
        part = missed / total
        start = self._start + by_a * part
        if start >= 0.0:
            self._slope += by_b * part
            self.rate += by_c * part
        else:  # what it cannot take is the others'
            part = (missed + self._start) / (b * x**2 + c * y**2 + noise**2)
            start = 0.0
            self._slope += b * x * part
            self.rate += c * y * part
        self._start, self._slope = start, max(self._slope, self._least_slope)
        self.rate = max(self.rate, 0.0)
        self._variances = a - by_a**2 / total, b - by_b**2 / total, c - by_c**2 / total
        self._covariances = (
            ab - by_a * by_b / total,
            ac - by_a * by_c / total,
            bc - by_b * by_c / total,
        )
