"""A server's figures as text in lines and columns, for a terminal of any size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from quire.cli.top.alarms import KV_FULL, Alarm
from quire.cli.top.figures import Figures, Percentiles
from quire.planner.machine_speed import MachineSpeed

NAME_WIDTH = 11
BAR_WIDTH = 16
#: Figures of a model, and how wide a terminal must be to show them.
COLUMNS = {
    "RUN": 40, "WAIT": 48, "GEN/S": 0, "PROMPT/S": 76, "TTFT P50": 76, "ITL P50": 60, "KV": 48,
}  # fmt: skip
#: Fewer lines of models are never shown.
MIN_MODELS = 2
STATE_STYLES = {"ready": "green", "failed": "red", "loading": "yellow", "downloading": "yellow"}


@dataclass(frozen=True, slots=True)
class ModelLine:
    """A model: its name, its state, how much of it is loaded (0 to 1), its figures."""

    name: str
    state: str
    loaded: float | None = None
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """All that is shown at one time.

    Attributes:
        url: The server's URL.
        state: ``ready``, ``not ready``, ``no answer``.
        clock: Time of day.
        sums: Figures of all models together; None before there are two readings.
        models: One line each.
        alarms: Alarms, critical ones first.
        processes: CPU, in cores, and resident bytes of each process.
        machine: The machine's speed, where the server runs on this machine and it was measured.
        local: Whether the server runs on this machine.
        keys: A hint on the keys that end the view; empty where no key is read.
    """

    url: str
    state: str
    clock: str
    sums: Figures | None
    models: list[ModelLine]
    alarms: list[Alarm]
    processes: dict[str, tuple[float, float]] = field(default_factory=dict)
    machine: MachineSpeed | None = None
    local: bool = True
    keys: str = ""


class View:
    """Draws ``shown`` as wide and, where the console has a height, as high as there is room."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, unbound = self._shown, options.update(height=None)

        def lines(*parts: RenderableType) -> list[list[Segment]]:
            return [
                line for part in parts for line in console.render_lines(part, unbound, pad=False)
            ]

        drawn = lines(_title(shown), *_summary(shown, options.ascii_only))
        # Before the models: where there is too little room, these are what is left out.
        if shown.alarms:
            drawn += lines(Text(""), *map(_alarm, shown.alarms))
        room = len(shown.models) + 1
        if options.height is not None:
            room = max(options.height - len(drawn) - 1 - bool(shown.keys), MIN_MODELS + 1)
        drawn += lines(Text(""), _models(shown.models, room, options.max_width))
        if shown.keys:
            drawn += lines(Text(shown.keys, "dim"))
        for line in drawn if options.height is None else drawn[: options.height]:
            yield from line
            yield Segment.line()


def _title(shown: Shown) -> Text:
    style = "green" if shown.state == "ready" else "bold red"
    title = Text.assemble(("quire top", "bold"), "  ", clean(shown.url), "  ", (shown.state, style))
    seconds = f"  over {shown.sums.elapsed:.0f} s" if shown.sums is not None else ""
    return _line(title.append(f"{seconds}  {shown.clock}", "dim"))


def _summary(shown: Shown, ascii_only: bool) -> Iterator[RenderableType]:
    sums = shown.sums
    if sums is None:
        return
    yield _row(
        "requests",
        f"{_count(sums.running)} running  {_count(sums.waiting)} waiting  "
        f"{_count(sums.finish_rate, 1)} ended/s",
    )
    yield _row(
        "tokens/s", f"{_count(sums.generation_rate)} generated  {_count(sums.prompt_rate)} prompt"
    )
    yield _row("TTFT", _percentiles(sums.ttft))
    yield _row("ITL", _percentiles(sums.itl))
    yield from _cache(sums, ascii_only)
    yield _row("step", _step(sums))
    if sums.accepted_part is not None and sums.round_tokens is not None:
        accepted = f"{sums.accepted_part:.0%} of the proposed tokens accepted"
        yield _row("speculation", f"{accepted}  {sums.round_tokens:.2f} tokens a round")
    yield _row("machine", _machine(shown, sums))
    if shown.processes:
        told = [
            f"{name} {cores:.0%} CPU {_bytes(resident)}"
            for name, (cores, resident) in shown.processes.items()
        ]
        told.append(f"detokenize {sums.stage_seconds['detokenize'] / sums.elapsed:.0%}")
        yield _row("processes", "  ".join(told))


def _cache(sums: Figures, ascii_only: bool) -> Iterator[RenderableType]:
    used, free = sums.kv_used, sums.kv_free
    if used is None or free is None:
        yield _row("KV", "-")
        return
    hits = "-" if sums.prefix_hit_part is None else f"{sums.prefix_hit_part:.0%}"
    sharing = f"{sums.kv_sharing:.2f}x" if sums.kv_sharing else "-"
    text = f" {used:,.0f}/{used + free:,.0f} blocks  shared {sharing}  prefix hits {hits}"
    part = used / max(used + free, 1.0)
    style = "green" if part <= KV_FULL else "red"
    full, empty = ("#", ".") if ascii_only else ("\u2588", "\u2591")
    length = math.ceil(part * BAR_WIDTH)
    bar = Text.assemble((full * length, style), (empty * (BAR_WIDTH - length), "dim"))
    yield _line(Text.assemble((f"{'KV':{NAME_WIDTH}}", "bold"), bar, text))


def _step(sums: Figures) -> str:
    if not sums.step_rate or not sums.stage_parts:
        return "none"
    mean = sums.step_seconds / (sums.step_rate * sums.elapsed)
    split = " ".join(f"{stage} {part:.0%}" for stage, part in sums.stage_parts.items())
    return f"{_seconds(mean)}, busy {sums.step_seconds / sums.elapsed:.0%}: {split}"


def _machine(shown: Shown, sums: Figures) -> str:
    if not sums.read_rate or sums.flop_rate is None:
        return "idle"
    read = f"reads {sums.read_rate / 1e9:.1f} GB/s"
    computes = f"computes {sums.flop_rate / 1e9:.1f} GFLOP/s"
    peak = shown.machine
    if peak is not None:
        read += f", {sums.read_rate / peak.read:.0%} of {peak.read / 1e9:.0f}"
        computes += f", {sums.flop_rate / peak.compute:.1%} of {peak.compute / 1e9:,.0f}"
        return f"{read}  {computes}"
    return f"{read}  {computes}" + ("  (parts of what: quire doctor)" if shown.local else "")


def _models(models: list[ModelLine], room: int, width: int) -> Table:
    """Return the table of models: a header and at most ``room`` - 1 lines, in ``width`` columns."""
    columns = [name for name, needed in COLUMNS.items() if width >= needed]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("MODEL", no_wrap=True, overflow="ellipsis", min_width=8)
    table.add_column("STATE", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    cut = models if len(models) < room else models[: room - 2]
    for model in cut:
        part = "" if model.loaded in (None, 1.0) else f" {model.loaded:.0%}"
        state = Text(clean(model.state) + part, STATE_STYLES.get(model.state, ""))
        cells = {} if model.figures is None else _cells(model.figures)
        table.add_row(Text(clean(model.name)), state, *(cells.get(c, "-") for c in columns))
    if len(cut) < len(models):
        table.add_row(Text(f"and {len(models) - len(cut)} more", "dim"))
    return table


def _cells(figures: Figures) -> dict[str, str]:
    return {
        "RUN": _count(figures.running),
        "WAIT": _count(figures.waiting),
        "GEN/S": _count(figures.generation_rate),
        "PROMPT/S": _count(figures.prompt_rate),
        "TTFT P50": "-" if figures.ttft is None else _seconds(figures.ttft.p50),
        "ITL P50": "-" if figures.itl is None else _seconds(figures.itl.p50),
        "KV": "-" if figures.kv_usage is None else f"{figures.kv_usage:.0%}",
    }


def _alarm(alarm: Alarm) -> Text:
    word, style = ("ALARM", "bold red") if alarm.critical else ("warning", "yellow")
    return Text.assemble((f"{word:8}", style), clean(alarm.text))


def _row(name: str, text: str) -> Text:
    return _line(Text.assemble((f"{name:{NAME_WIDTH}}", "bold"), text))


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _percentiles(found: Percentiles | None) -> str:
    if found is None:
        return "none"
    values = (("p50", found.p50), ("p95", found.p95), ("p99", found.p99))
    return "  ".join(f"{name} {_seconds(value):>7}" for name, value in values)


def _count(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _bytes(value: float) -> str:
    from quire.core.counts import format_bytes

    return format_bytes(int(value))


def clean(text: str) -> str:
    """Return what a server sent without what a terminal would act on."""
    return "".join(c if c.isprintable() else "?" for c in text)
