"""What is drawn: in a file, on a small terminal, with many models, of a hostile server."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from quire.cli.top.alarms import Alarm
from quire.cli.top.figures import figures
from quire.cli.top.reading import Reading
from quire.cli.top.scrape import read_scrape
from quire.cli.top.view import ModelLine, Shown, View
from quire.cli.top.watched import Watched
from quire.core.errors import QuireError
from quire.planner.machine_speed import MachineSpeed
from tests.cli.top.conftest import exposition
from tests.cli.top.test_figures import AFTER, BEFORE

URL = "http://127.0.0.1:8000"
MACHINE = MachineSpeed(read=20e9, float32=50e9, bfloat16=0, int8=200e9)


def draw(view, width=80, height=None, ascii_only=False):
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=height is not None,
        color_system=None, legacy_windows=False,
    )  # fmt: skip
    options = console.options.update(height=height)
    options.encoding = "ascii" if ascii_only else "utf-8"
    drawn = "".join(s.text for s in view.__rich_console__(console, options) if not s.control)
    return [line.rstrip() for line in drawn.splitlines()]


def shown(reading, **fields):
    sums = figures(reading(100, BEFORE), reading(104, AFTER))
    usual = {
        "url": URL, "state": "ready", "clock": "12:00:00", "sums": sums,
        "models": [ModelLine("m", "ready", 1.0, sums), ModelLine("other", "loading", 0.4)],
        "alarms": [Alarm(True, "it burns")], "machine": MACHINE,
        "processes": {"server": (0.25, 2**26), "engine": (1.5, 2**30)},
    }  # fmt: skip
    return Shown(**{**usual, **fields})


def test_every_figure_is_where_it_belongs(reading):
    assert draw(View(shown(reading)), ascii_only=True) == [
        "quire top  http://127.0.0.1:8000  ready  over 4 s  12:00:00",
        "requests   3 running  1 waiting  1.5 ended/s",
        "tokens/s   100 generated  20 prompt",
        "TTFT       none",
        "ITL        p50 50.0 ms  p95 95.0 ms  p99 99.0 ms",
        "KV         ####............ 20/80 blocks  shared 2.50x  prefix hits 60%",
        "step       100 ms, busy 50%: schedule 5% execute 80% sample 10% update 5%",
        "machine    reads 2.0 GB/s, 10% of 20  computes 1.0 GFLOP/s, 0.5% of 200",
        "processes  server 25% CPU 64.0 MiB  engine 150% CPU 1.00 GiB  detokenize 12%",
        "",
        "ALARM   it burns",
        "",
        "MODEL     STATE        RUN  WAIT  GEN/S  PROMPT/S  TTFT P50  ITL P50   KV",
        "m         ready          3     1    100        20         -  50.0 ms  25%",
        "other     loading 40%    -     -      -         -         -        -    -",
    ]


def test_the_speed_of_another_machine_is_not_this_ones(reading):
    drawn = draw(View(shown(reading, machine=None, local=False)))
    assert "machine    reads 2.0 GB/s  computes 1.0 GFLOP/s" in drawn
    local = draw(View(shown(reading, machine=None)))
    assert any(line.endswith("(parts of what: quire doctor)") for line in local)
    first = Reading(0, read_scrape(exposition({"m": BEFORE})), {"m": "ready"})
    for url, machine in ((URL, MACHINE), ("http://elsewhere:8000", None)):
        assert Watched(url, 10, first, MACHINE).shown().machine is machine


@pytest.mark.parametrize("width, height", [(80, 24), (40, 12), (20, 5), (200, 60)])
def test_any_terminal_is_filled_and_never_overrun(reading, width, height):
    models = [ModelLine(f"model-{i}" * 6, "ready") for i in range(30)]
    alarms = [Alarm(False, "a very long warning " * 9) for _ in range(3)]
    lines = draw(View(shown(reading, models=models, alarms=alarms)), width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    if (width, height) == (80, 24):
        assert any(line.startswith("and ") and line.endswith(" more") for line in lines)
        assert sum("warning" in line for line in lines) >= 3
    if height == 60:
        assert not any(line.startswith("and ") for line in lines)


def test_what_a_server_sends_moves_no_cursor(reading):
    models = [ModelLine("a\x1b[2J", "rea\x07dy")]
    drawn = draw(View(shown(reading, models=models, alarms=[Alarm(True, "\x1b]0;x\x07[red]")])))
    assert "a?[2J" in drawn[-1] and "rea?dy" in drawn[-1]
    assert "ALARM   ?]0;x?[red]" in drawn


def test_a_server_that_does_not_answer_keeps_its_last_figures(reading):
    watched = Watched(URL, 10, reading(0, BEFORE), None)
    assert draw(View(watched.shown()))[1:] == [
        "",
        "MODEL     STATE  RUN  WAIT  GEN/S  PROMPT/S  TTFT P50  ITL P50  KV",
        "m         ready    -     -      -         -         -        -   -",
    ]
    watched.add(reading(4, AFTER))
    watched.add(QuireError("[server] one must answer"))
    assert watched.state == watched.as_json()["state"] == "no answer"
    lines = draw(View(watched.shown()))
    assert "no answer" in lines[0] and "100 generated" in lines[2]
    assert "ALARM   [server] one must answer" in lines
    watched.add(reading(5, AFTER))
    assert watched.state == "ready" and watched.as_json()["alarms"] == []
    watched.add(reading(6, AFTER, not_ready="HTTP 503: no step"))
    assert watched.state == "not ready"
