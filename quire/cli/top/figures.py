"""Figures of a server between two readings, of one model or of all; nothing is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quire.cli.top.reading import Reading

#: Parts of a step in the engine's process; the server's process detokenizes meanwhile.
ENGINE_STAGES = ("schedule", "execute", "sample", "update")
STAGES = (*ENGINE_STAGES, "detokenize")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of latencies, in seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one model, or of all, over an interval; None is what the server does not tell.

    Attributes:
        elapsed: The interval, in seconds.
        running, waiting: Sequences now.
        prompt_rate, generation_rate: Tokens a second; of prompts, those that were computed.
        finish_rate: Sequences that ended, a second.
        ttft, itl: Latencies of the interval's requests and tokens; None when there were none.
        kv_used, kv_free: Blocks now.
        kv_references: Entries of block tables now; above ``kv_used`` by what sharing saves.
        kv_usage: Part of the blocks in use, 0 to 1.
        prefix_hit_part: Part of the prompts' tokens found in the prefix cache, 0 to 1.
        step_rate: Steps a second.
        stage_seconds: Time in the interval, by stage of a step.
        read_rate, flop_rate: Estimated bytes and operations a second in the interval.
        accepted_part: Part of the proposed tokens that held, 0 to 1; None when none were proposed.
        round_tokens: Tokens of a round of proposals, the model's own included, on average.
    """

    elapsed: float
    running: float | None
    waiting: float | None
    prompt_rate: float | None
    generation_rate: float | None
    finish_rate: float | None
    ttft: Percentiles | None
    itl: Percentiles | None
    kv_used: float | None
    kv_free: float | None
    kv_references: float | None
    kv_usage: float | None
    prefix_hit_part: float | None
    step_rate: float | None
    stage_seconds: Mapping[str, float]
    read_rate: float | None
    flop_rate: float | None
    accepted_part: float | None = None
    round_tokens: float | None = None

    @property
    def step_seconds(self) -> float:
        """Time in steps of engines."""
        return sum(self.stage_seconds.get(stage, 0.0) for stage in ENGINE_STAGES)

    @property
    def stage_parts(self) -> dict[str, float]:
        """Part of the engines' time in steps, by stage, 0 to 1; empty when there was no step."""
        if not self.step_seconds:
            return {}
        return {stage: self.stage_seconds[stage] / self.step_seconds for stage in ENGINE_STAGES}

    @property
    def kv_sharing(self) -> float | None:
        """Tables that hold a used block, on average; 1 where nothing is shared."""
        if not self.kv_used or self.kv_references is None:
            return None
        return self.kv_references / self.kv_used

    def as_json(self) -> dict[str, Any]:
        """Return all that is known, by name."""
        return asdict(self) | {
            "step_seconds": self.step_seconds,
            "stage_parts": self.stage_parts,
            "kv_sharing": self.kv_sharing,
        }


def figures(before: Reading, after: Reading, model: str | None = None) -> Figures:
    """Return what happened from ``before`` to ``after``.

    Args:
        model: The one it is about; None: all together.
    """
    elapsed, scrape = after.seconds - before.seconds, after.scrape

    def added(stem: str, **labels: str) -> float | None:
        return scrape.increase(before.scrape, stem, model, **labels)

    def rate(stem: str, **labels: str) -> float | None:
        return _ratio(added(stem, **labels), elapsed)

    def latencies(stem: str) -> Percentiles | None:
        found = scrape.observed(before.scrape, stem, model)
        if found is None or not found.total:
            return None
        return Percentiles(*(found.quantile(part) or 0.0 for part in (0.5, 0.95, 0.99)))

    used = scrape.value("num_kv_blocks", model, state="used")
    free = scrape.value("num_kv_blocks", model, state="free")
    queries = added("prefix_cache_queries")
    accepted = added("spec_decode_num_accepted_tokens")
    held = _ratio(accepted, added("spec_decode_num_drafts"))
    return Figures(
        elapsed=elapsed,
        running=scrape.value("num_requests_running", model),
        waiting=scrape.value("num_requests_waiting", model),
        prompt_rate=rate("prompt_tokens_by_source", source="local_compute"),
        generation_rate=rate("generation_tokens"),
        finish_rate=rate("request_success"),
        ttft=latencies("time_to_first_token_seconds"),
        itl=latencies("inter_token_latency_seconds"),
        kv_used=used,
        kv_free=free,
        kv_references=scrape.value("num_kv_block_references", model),
        kv_usage=None if used is None or free is None else _ratio(used, used + free),
        prefix_hit_part=_ratio(added("prefix_cache_hits"), queries),
        step_rate=rate("num_steps"),
        stage_seconds={stage: added("step_seconds", stage=stage) or 0.0 for stage in STAGES},
        read_rate=rate("estimated_read_bytes_per_gpu"),
        flop_rate=rate("estimated_flops_per_gpu"),
        accepted_part=_ratio(accepted, added("spec_decode_num_draft_tokens")),
        round_tokens=None if held is None else 1 + held,
    )


def _ratio(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole
