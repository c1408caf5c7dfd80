"""The alert rules of ``deploy/`` judged by two looks at a server's counters, without Prometheus.

Of PromQL only the shapes that these rules have: a gauge, a rate or a ratio of rates above a number.
How long a rule must hold (``for``) is left out: a game day lasts seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import yaml

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_METRIC = r"quire:(\w+)"
_RATE = rf"rate\({_METRIC}\[(\d+)([smh])\]\)"
_GAUGE_RULE = re.compile(rf"{_METRIC} > ([\d.]+)")
_RATE_RULE = re.compile(rf"(?:sum by \([\w, ]+\) )?\(?{_RATE}\)? > ([\d.]+)")
_RATIO_RULE = re.compile(rf"{_RATE} / {_RATE} > ([\d.]+)")

#: Metrics by stem, as :func:`benchmarks.robustness.server_state.counters` returns them.
Values = dict[str, float]
#: Called with the values before and now; True where the rule's expression is true.
Alert = Callable[[Values, Values], bool]


def load(name: str) -> Alert:
    """Return the rule of that name.

    A rate is the increase between two looks over the rule's whole window, which is what Prometheus
    sees of a burst that lies within the window.

    Raises:
        KeyError: No such rule.
        ValueError: Its expression has a shape that is not judged here.
    """
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = {rule["alert"]: str(rule["expr"]) for group in groups for rule in group["rules"]}
    expression = rules[name]
    if found := _GAUGE_RULE.fullmatch(expression):
        stem, limit = found[1], float(found[2])
        return lambda _, now: now[stem] > limit
    if found := _RATE_RULE.fullmatch(expression):
        stem, window = found[1].removesuffix("_total"), int(found[2]) * _SECONDS[found[3]]
        least = float(found[4]) * window
        return lambda before, now: now[stem] - before[stem] > least
    if found := _RATIO_RULE.fullmatch(expression):
        if found.group(2, 3) != found.group(5, 6):
            raise ValueError(f"[alerts] two windows in one rule: {expression}")
        above, below = found[1].removesuffix("_total"), found[4].removesuffix("_total")
        limit = float(found[7])
        # 0 / 0 is no number in PromQL, and no number is above the limit.
        return lambda before, now: now[above] - before[above] > limit * (now[below] - before[below])
    raise ValueError(f"[alerts] only gauges, rates and their ratios are judged; got {expression}")
