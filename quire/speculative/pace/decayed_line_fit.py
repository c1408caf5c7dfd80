"""A line through what is measured over and over, while it changes."""

from __future__ import annotations


class DecayedLineFit:
    """``start + slope * x``: a Kalman filter of two states (Kalman 1960), neither below its least.

    Args:
        start, slope: The line's first values.
        spreads: Standard deviations of both at first.
        changes: Standard deviations of their change from one measurement to the next.
        least_slope: Least value of the slope.
    """

    def __init__(
        self,
        start: float,
        slope: float,
        spreads: tuple[float, float],
        changes: tuple[float, float],
        least_slope: float = 0.0,
    ) -> None:
        self._start, self._slope, self._least_slope = start, slope, least_slope
        self._variances = [spread**2 for spread in spreads]
        self._covariance = 0.0
        self._changes = [change**2 for change in changes]

    def at(self, x: float) -> float:
        """Return what is expected at ``x``."""
        return self._start + self._slope * x

    def observe(self, x: float, missed: float, noise: float) -> None:
        """Correct the line by a measurement at ``x``, ``missed`` more than expected there.

        Args:
            noise: Standard deviation of a measurement there.
        """
        start, slope = (v + c for v, c in zip(self._variances, self._changes, strict=True))
        start_gain = start + self._covariance * x
        slope_gain = self._covariance + slope * x
        total = start_gain + slope_gain * x + noise**2
        found = self._start + start_gain / total * missed
        if found < 0.0:  # what it cannot take is the slope's
            by_slope = slope * x / (slope * x**2 + noise**2) * (missed + self._start)
            self._start, self._slope = 0.0, self._slope + by_slope
        else:
            self._start, self._slope = found, self._slope + slope_gain / total * missed
        self._slope = max(self._slope, self._least_slope)
        self._covariance -= start_gain * slope_gain / total
        self._variances = [start - start_gain**2 / total, slope - slope_gain**2 / total]
