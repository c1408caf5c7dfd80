"""A report on a division of a model, as lines of text or as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from quire.core.counts import format_bytes
from quire.core.plurals import counted
from quire.planner.parallel_costs import (
    LINKS,
    Interconnect,
    SplitShape,
    collectives,
    forward_bytes,
    rank_memory,
    seconds,
    slow_link,
)
from quire.planner.parallel_plan import ParallelPlan, PlannedLoad
from quire.settings.parallel_layout import ParallelLayout


def report_lines(
    load: PlannedLoad,
    layout: ParallelLayout,
    link: Interconnect,
    *,
    exact: bool = True,
    wire_bytes: int = 4,
) -> Iterator[str]:
    """Give the map of ranks, the memory of each, what a token's forward exchanges and its time.

    Args:
        load: The load that shall run.
        layout: Division of the model.
        link: The link between ranks.
        exact: Whether no product is summed over ranks.
        wire_bytes: Bytes of an element that is sent.
    """
    shape = load.shape
    yield from layout.lines(shape.num_layers)
    for one in rank_memory(
        shape, load.spec, layout, load.weight_bytes, load.max_rows, wire_bytes=wire_bytes
    ):
        yield (
            f"rank {one.rank}: weights {format_bytes(one.weights)}, KV "
            f"{format_bytes(one.kv_token)} a token, buffers {format_bytes(one.buffers)}; with "
            f"{counted(load.kv_tokens, 'token')} {format_bytes(one.total(load.kv_tokens))}"
        )
    links = [link, *(one for one in LINKS.values() if one is not link)]
    yield from exchange_lines(shape, layout, links, exact=exact, wire_bytes=wire_bytes)


def report_facts(
    load: PlannedLoad,
    layout: ParallelLayout,
    link: Interconnect,
    *,
    exact: bool = True,
    wire_bytes: int = 4,
) -> dict[str, Any]:
    """Return what :func:`report_lines` says as plain data, with the time over each kind of link."""
    shape = load.shape
    found = collectives(shape, layout, exact=exact, wire_bytes=wire_bytes)
    ranks = rank_memory(
        shape, load.spec, layout, load.weight_bytes, load.max_rows, wire_bytes=wire_bytes
    )
    return {
        "ranks": [asdict(one) for one in ranks],
        "collectives": [asdict(one) for one in found],
        "token_bytes": forward_bytes(found, 1, 1),
        "seconds": {name: seconds(found, layout, one, 1, 1) for name, one in LINKS.items()},
        "warning": slow_link(layout, link),
    }


def choice_lines(plan: ParallelPlan) -> Iterator[str]:
    """Give the layout that was chosen, others of as many devices, and the reasons."""
    names = [f"TP={one.layout.tensor} x PP={one.layout.pipeline}" for one in plan.candidates]
    others = f" (as many devices: {', '.join(names[1:])})" if names[1:] else ""
    yield f"choice: {names[0]}{others}"
    for reason in plan.reasons:
        yield f"- {reason}"


def exchange_lines(
    shape: SplitShape,
    layout: ParallelLayout,
    links: Sequence[Interconnect],
    *,
    exact: bool = True,
    whole_experts: bool = False,
    wire_bytes: int = 4,
) -> Iterator[str]:
    """Give what a token's forward exchanges between ranks, and its time.

    Args:
        shape: The model.
        layout: Division of the model.
        links: The link between ranks, then others to compare with.
        exact, wire_bytes: The same as in :func:`report_lines`.
        whole_experts: Whether ranks have some experts whole, not a part of each.
    """
    found = collectives(
        shape, layout, exact=exact, wire_bytes=wire_bytes, whole_experts=whole_experts
    )
    calls = sum(exchange.calls for exchange in found)
    total = forward_bytes(found, 1, 1)
    yield (
        f"a token's forward exchanges {counted(total, 'byte')} in {counted(calls, 'call')}, "
        f"{total / 1e6:.2f} MB"
    )
    for exchange in found:
        rows = "a row of logits" if exchange.of_logits else "a token"
        calls_of = f"{exchange.calls} x {exchange.name}, {exchange.what}"
        yield f"  {calls_of}: {exchange.row_bytes:,} bytes {rows}"
    if not found:
        return
    for link in links:
        waits = seconds(found, layout, link, 1, 1)
        yield f"over {link.title}: {1e3 * waits:.3f} ms a token"
    warning = slow_link(layout, links[0])
    if warning is not None:
        yield f"warning: {warning}"
