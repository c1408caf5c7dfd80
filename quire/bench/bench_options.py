"""Settings of ``quire bench serve``, with defaults; flags are generated from the fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from quire.bench.server_options import TargetOptions, check
from quire.core.errors import ConfigError
from quire.settings.option import option

#: What a percentile or an SLO can be of.
METRICS = ("ttft", "tpot", "itl", "e2el")
#: Words of ``--goodput``: vLLM writes ``e2el`` in one place and ``e2e`` in the other.
SLO_METRICS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2el", "e2e": "e2el"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(TargetOptions):
    """The load of a run, its server, and the figures that are reported."""

    tokenizer: str | None = option(None, "folder, GGUF file or hub id: send texts of exact lengths")
    dataset_name: Literal["random", "lognormal", "trace", "timed_trace"] = option(
        "random", "distribution of lengths"
    )
    dataset_path: str | None = option(None, "CSV of a trace: time, prompt tokens, output tokens")
    num_prompts: int = option(1000, "requests to send")
    input_len: int = option(
        1024, "prompt tokens; the mean of lognormal", aliases=("random-input-len",)
    )
    output_len: int = option(
        128, "output tokens; the mean of lognormal", aliases=("random-output-len",)
    )
    range_ratio: float = option(
        0.0, "random: lengths vary by this fraction", aliases=("random-range-ratio",)
    )
    spread: float = option(0.7, "lognormal: deviation of the lengths' logarithm")
    prefix_len: int = option(
        0, "tokens that all prompts share, before their own", aliases=("random-prefix-len",)
    )
    max_input_len: int | None = option(None, "cut longer prompts")
    max_output_len: int | None = option(None, "cut longer outputs")
    vocab_size: int = option(1000, "token-id prompts use ids below this")
    request_rate: float = option(math.inf, "requests per second, open loop; inf: all at once")
    burstiness: float = option(1.0, "arrivals: 1 Poisson, less is burstier, more is steadier")
    max_concurrency: int | None = option(None, "most requests in flight, closed loop")
    num_warmups: int = option(0, "requests sent before the run, not counted")
    percentile_metrics: str = option("ttft,tpot,itl", "metrics to print (also e2el)")
    metric_percentiles: str = option("99", "percentiles of each metric, by commas")
    goodput: tuple[str, ...] = option((), "bound ttft:MS, tpot:MS or e2el:MS for goodput")
    save_detailed: bool = option(False, "add lists with a value per request to the file")

    def __post_init__(self) -> None:
        # Without arguments super() would look for the class as it was before it had slots.
        TargetOptions.__post_init__(self)
        checks = (
            ("--num-prompts", self.num_prompts >= 1, "be at least 1", self.num_prompts),
            ("--input-len", self.input_len >= 1, "be at least 1", self.input_len),
            ("--output-len", self.output_len >= 1, "be at least 1", self.output_len),
            ("--range-ratio", 0 <= self.range_ratio < 1, "be in [0, 1)", self.range_ratio),
            ("--spread", 0 <= self.spread <= 4, "be in 0..4", self.spread),
            ("--prefix-len", self.prefix_len >= 0, "be at least 0", self.prefix_len),
            ("--vocab-size", self.vocab_size >= 16, "be at least 16", self.vocab_size),
            ("--request-rate", self.request_rate > 0, "be above 0", self.request_rate),
            ("--burstiness", self.burstiness > 0, "be above 0", self.burstiness),
            ("--num-warmups", self.num_warmups >= 0, "be at least 0", self.num_warmups),
            *(
                (f"--{name}", value is None or value >= 1, "be at least 1", value)
                for name, value in (
                    ("max-concurrency", self.max_concurrency),
                    ("max-input-len", self.max_input_len),
                    ("max-output-len", self.max_output_len),
                )
            ),
        )
        check(checks)
        if "trace" in self.dataset_name and self.dataset_path is None:
            raise ConfigError(
                f"[bench] --dataset-name {self.dataset_name} needs --dataset-path; got none."
            )
        if self.dataset_name == "timed_trace" and self.request_rate != math.inf:
            raise ConfigError(
                "[bench] --request-rate must be inf with timed_trace, which has times of its own; "
                f"got {self.request_rate}. Use trace for its lengths alone."
            )
        self.percentiles()
        self.sections()
        self.slos()
        self.check_result("save_detailed")

    def percentiles(self) -> list[float]:
        """Return ``--metric-percentiles`` as numbers."""
        try:
            found = [float(part) for part in self.metric_percentiles.split(",")]
        except ValueError:
            found = []
        if not found or not all(0 < value <= 100 for value in found):
            raise ConfigError(
                "[bench] --metric-percentiles must be numbers in (0, 100]; got "
                f"{self.metric_percentiles!r}."
            )
        return found

    def sections(self) -> list[str]:
        """Return ``--percentile-metrics`` as names out of :data:`METRICS`."""
        found = [part.strip() for part in self.percentile_metrics.split(",")]
        unknown = [name for name in found if name not in METRICS]
        if unknown:
            raise ConfigError(
                f"[bench] --percentile-metrics must be of {', '.join(METRICS)}; got "
                f"{', '.join(unknown)!r}."
            )
        return found

    def slos(self) -> dict[str, float]:
        """Return ``--goodput`` as milliseconds by metric."""
        found = {}
        for text in (word for value in self.goodput for word in value.split()):
            name, _, bound = text.partition(":")
            try:
                metric, milliseconds = SLO_METRICS[name], float(bound)
            except (KeyError, ValueError):
                metric, milliseconds = "", math.nan
            if not milliseconds >= 0:
                raise ConfigError(
                    f"[bench] --goodput must be ttft:MS, tpot:MS or e2el:MS; got {text!r}."
                )
            found[metric] = milliseconds
        return found
