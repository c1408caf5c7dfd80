"""Division of the cores between models that compute at the same time.

Every engine may use all cores, so that one that computes alone has them all; between those that do
at once the kernel of the operating system divides them, by the priority of each engine's threads.
A step of Linux's nice value is a factor of 1.25 (kernel/sched/core.c, ``sched_prio_to_weight``).
Nice values count among the threads of one session or control group (autogroups, cgroups): engines
stay in the server's, and none may have one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from quire.core.errors import ConfigError
from quire.store.manifests import plain_name

#: From one nice value to the next.
_STEP = 1.25
#: Of nice value 0 to 19; more cannot be told apart.
MOST = 64.0


class CoreWeights:
    """The weights of a server's models.

    Args:
        given: ``NAME=WEIGHT`` each; models that are not among them have weight 1.

    Raises:
        ConfigError: One is not like that, or names a model a second time.
    """

    def __init__(self, given: Sequence[str]) -> None:
        self._weights: dict[str, float] = {}
        for one in given:
            name, _, number = one.rpartition("=")
            try:
                weight = float(number)
            except ValueError:
                weight = math.nan
            if not name or not 1 <= weight <= MOST or _key(name) in self._weights:
                raise ConfigError(
                    f"[config] --core-weight must be NAME=WEIGHT, once a model, with a weight of 1 "
                    f"to {MOST:g}; got {one}."
                )
            self._weights[_key(name)] = weight

    def check_known(self, names: Sequence[str]) -> None:
        """Check that each weight is for one of ``names``.

        Raises:
            ConfigError: A weight is for another name.
        """
        unknown = self._weights.keys() - {_key(name) for name in names}
        if unknown:
            raise ConfigError(
                f"[config] --core-weight must name a model of this server ({', '.join(names)}); "
                f"got {min(unknown)}."
            )

    def niceness(self, name: str) -> int:
        """Return the nice value of a model's engine: 0 of the heaviest, 1 to 19 of others."""
        heaviest = max(self._weights.values(), default=1.0)
        return round(math.log(heaviest / self._weights.get(_key(name), 1.0), _STEP))


def _key(name: str) -> str:
    return plain_name(name).lower()
