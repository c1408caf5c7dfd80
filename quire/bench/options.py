"""Settings of ``quire bench serve``, with defaults; flags are generated from the fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quire.core.config import option
from quire.core.errors import ConfigError

#: What a percentile or an SLO can be of.
METRICS = ("ttft", "tpot", "itl", "e2el")
#: Words of ``--goodput``: vLLM writes ``e2el`` in one place and ``e2e`` in the other.
SLO_METRICS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2el", "e2e": "e2el"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is sent, where, when, and what is reported."""

    backend: Literal["openai", "openai-chat", "vllm"] = option(
        "openai", "API: text completions (also vllm) or chat completions"
    )
    base_url: str | None = option(None, "http(s)://host:port, instead of --host and --port")
    host: str = option("127.0.0.1", "the server's address")
    port: int = option(8000, "the server's port")
    endpoint: str | None = option(None, "path; default: the backend's own")
    model: str | None = option(None, "name to ask for; default: the first the server lists")
    tokenizer: str | None = option(None, "folder, GGUF file or hub id: send texts of exact lengths")
    header: tuple[str, ...] = option((), "extra header K=V")
    api_key: str | None = option(None, "sent as a bearer token; or set QUIRE_API_KEY")
    insecure: bool = option(False, "do not check the TLS certificate")
    dataset_name: Literal["random", "lognormal", "trace", "timed_trace"] = option(
        "random", "how lengths are drawn"
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
    seed: int = option(0, "of lengths, prompts and arrivals")
    request_rate: float = option(math.inf, "requests per second, open loop; inf: all at once")
    burstiness: float = option(1.0, "arrivals: 1 Poisson, less is burstier, more is steadier")
    max_concurrency: int | None = option(None, "most requests in flight, closed loop")
    num_warmups: int = option(0, "requests sent before, not counted")
    ready_check_timeout_sec: float = option(0.0, "wait so long for the server to answer")
    request_timeout: float = option(3600.0, "seconds after which a request has failed")
    ignore_eos: bool = option(True, "ask for exactly the output length")
    temperature: float = option(0.0, "of sampling")
    extra_body: str | None = option(None, "JSON object of more request fields")
    percentile_metrics: str = option("ttft,tpot,itl", "sections to print (also e2el)")
    metric_percentiles: str = option("99", "percentiles of each, by commas")
    goodput: tuple[str, ...] = option((), "bound ttft:MS, tpot:MS or e2el:MS for goodput")
    save_result: bool = option(False, "write a JSON file")
    save_detailed: bool = option(False, "with a list per request in it")
    append_result: bool = option(False, "add a line to the file instead of replacing it")
    result_dir: str | None = option(None, "folder of the file")
    result_filename: str | None = option(None, "its name; default: from rate, model and time")
    metadata: tuple[str, ...] = option((), "K=V to keep in the file")
    label: str | None = option(None, "name of the run in the file")
    disable_tqdm: bool = option(False, "show no progress")

    def __post_init__(self) -> None:
        checks = (
            ("--port", 0 < self.port <= 65535, "be in 1..65535", self.port),
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
            ("--request-timeout", self.request_timeout > 0, "be above 0", self.request_timeout),
            ("--temperature", 0 <= self.temperature < math.inf, "be at least 0", self.temperature),
            (
                "--ready-check-timeout-sec",
                self.ready_check_timeout_sec >= 0,
                "be at least 0",
                self.ready_check_timeout_sec,
            ),
            ("--endpoint", self.path().startswith("/"), "begin with /", self.endpoint),
            *(
                (f"--{name}", value is None or value >= 1, "be at least 1", value)
                for name, value in (
                    ("max-concurrency", self.max_concurrency),
                    ("max-input-len", self.max_input_len),
                    ("max-output-len", self.max_output_len),
                )
            ),
        )
        for flag, holds, rule, value in checks:
            if not holds:
                raise ConfigError(f"[bench] {flag} must {rule}; got {value}.")
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
        self._check_result()
        pairs("--metadata", self.metadata)
        pairs("--header", self.header)

    def _check_result(self) -> None:
        """Refuse settings of a file that is not written."""
        if self.save_result or self.append_result:
            return
        for name in ("save_detailed", "result_dir", "result_filename", "metadata", "label"):
            if getattr(self, name):
                raise ConfigError(
                    f"[bench] --{name.replace('_', '-')} must come with --save-result or "
                    f"--append-result; got it alone."
                )

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

    def url(self) -> str:
        """Return the server's address without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{self.port}").rstrip("/")

    def path(self) -> str:
        """Return the path that generates."""
        chat = self.backend == "openai-chat"
        return self.endpoint or ("/v1/chat/completions" if chat else "/v1/completions")


def pairs(flag: str, values: Sequence[str]) -> dict[str, str]:
    """Return the ``K=V`` of a repeatable flag.

    Raises:
        ConfigError: One of them is not that.
    """
    found = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not name or not equals or not value.isprintable():
            raise ConfigError(f"[bench] {flag} must be K=V; got {value!r}.")
        found[name] = content
    return found
