"""The result file of ``quire bench spec``; keys of one load are those of ``vllm bench serve``."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from quire.bench.proposals import Proposals
from quire.bench.report import figures
from quire.bench.server_options import pairs
from quire.bench.spec import LoadResult, RoundPart, SpecRun, metrics_of
from quire.bench.spec_options import SpecOptions

#: Figures that no part of this command has.
_ABSENT = ("request_goodput", "rtfx")


def spec_document(run: SpecRun, options: SpecOptions) -> dict[str, Any]:
    """Return the result as one JSON object."""
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": run.model,
        "dataset": options.dataset if options.prompts is None else options.prompts,
        "rounds": options.rounds,
        "output_len": options.output_len,
        "temperature": options.temperature,
        "seed": options.seed,
        "fields_with": options.fields(with_speculation=True),
        "fields_without": options.fields(with_speculation=False),
        **pairs("--metadata", options.metadata),
        "loads": [load_document(load, options) for load in run.loads],
    }


def load_document(load: LoadResult, options: SpecOptions) -> dict[str, Any]:
    """Return the figures of one number of clients.

    ``ratio`` is output tokens a second with speculation by those without, of each round.
    """
    num_compared, num_different = load.compared()
    ratio = load.ratio()
    median, least, most = (None, None, None) if ratio is None else ratio
    return {
        "max_concurrency": load.concurrency,
        "num_prompts": options.part_size(load.concurrency),
        "ratio": {"median": median, "min": least, "max": most, "rounds": load.ratios()},
        "num_compared": num_compared,
        "num_different": num_different,
        "without": _figures(load.without),
        "with": _figures(load.with_speculation) | _proposed(load),
    }


def _figures(parts: list[RoundPart]) -> dict[str, Any]:
    found = figures(metrics_of(parts))
    return {name: value for name, value in found.items() if name not in _ABSENT}


def _proposed(load: LoadResult) -> dict[str, Any]:
    found: Proposals = load.proposals()
    tokens = sum(r.num_output_tokens for p in load.with_speculation for r in p.records)
    return {
        "spec_decode_acceptance_rate": _number(found.acceptance_rate),
        "spec_decode_acceptance_length": _number(found.acceptance_length),
        "spec_decode_num_drafts": found.num_drafts,
        "spec_decode_draft_tokens": found.num_draft_tokens,
        "spec_decode_accepted_tokens": found.num_accepted,
        "spec_decode_per_position_acceptance_rates": found.rates_by_position,
        "tokens_per_forward": _number(found.tokens_per_forward(tokens)),
    }


def _number(value: float) -> float | None:
    """Return a number that JSON has."""
    return None if math.isnan(value) else value


def names_of_result(options: SpecOptions) -> set[str]:
    """Return the names that the result file has without metadata."""
    return set(spec_document(SpecRun("", []), replace(options, metadata=())))


def load_name(options: SpecOptions) -> str:
    """Return what the load is called in the name of a result file."""
    return f"spec-{options.backend}-concurrency{options.concurrency.replace(',', '_')}"
