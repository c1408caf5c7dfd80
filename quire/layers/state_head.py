"""The head on pooled states: an encoder's pooler, and a classifier.

R pooled states, D model dim, C classes.
"""

from __future__ import annotations

from quire.kernels.backend import Array, Backend, Linear


class StateHead:
    """``classifier(tanh(pooler(x)))``; each row's result depends on that row alone.

    Args:
        backend: The backend that computes.
        pooler: D to D, or None.
        classifier: D to C, or None.
    """

    def __init__(self, backend: Backend, pooler: Linear | None, classifier: Linear | None) -> None:
        self._backend, self._pooler, self._classifier = backend, pooler, classifier

    def pooled(self, states: Array) -> Array:
        """Return the pooler's output for states (R, D); the states where there is none."""
        if self._pooler is None:
            return states
        made = self._pooler(states)
        return self._backend.soft_cap(made, 1.0, made)

    def logits(self, states: Array) -> Array:
        """Return the logits of the classes (R, C) for states (R, D)."""
        assert self._classifier is not None, "a model without classes was asked for them"
        return self._classifier(self.pooled(states))
