"""Expositions written by hand, and readings made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from quire.cli.top.reading import Reading
from quire.cli.top.scrape import read_scrape

MakeReading = Callable[..., Reading]


@pytest.fixture
def reading() -> MakeReading:
    """Make a reading at a time from samples by name and labels, as in the text format."""

    def make(
        seconds: float,
        samples: Mapping[str, float],
        *,
        model: str = "m",
        states: Mapping[str, str] | None = None,
        not_ready: str | None = None,
    ) -> Reading:
        scrape = read_scrape(exposition({model: samples}))
        return Reading(seconds, scrape, dict(states or {model: "ready"}), not_ready)

    return make


def exposition(models: Mapping[str, Mapping[str, float]], prefix: str = "quire:") -> str:
    """Return the text of a scrape: counters by their ``_total``, histograms by their ``le``."""
    lines: dict[str, list[str]] = {}
    for model, samples in models.items():
        for name, value in {"model_load_progress_perc": 1.0, **samples}.items():
            stem, _, labels = name.partition("{")
            inner = labels.removesuffix("}")
            both = ",".join(filter(None, (f'model_name="{model}",engine="0"', inner)))
            kind = "counter" if stem.endswith("_total") else "gauge"
            family = stem
            if "le=" in inner:
                kind, family = "histogram", stem.removesuffix("_bucket")
            head = f"# TYPE {prefix}{family} {kind}"
            lines.setdefault(head, []).append(f"{prefix}{stem}{{{both}}} {value}")
    return "\n".join(line for head, own in lines.items() for line in (head, *own)) + "\n"
