"""Every alert rule in Prometheus itself: fires in time, not a minute sooner, not for others."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy/prometheus"
GROUPS = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
#: Those of every series of a server, as Prometheus keeps them.
OWN = {"engine": "0", "model_name": "m"}
ALL = {"job": "quire", **OWN}
#: A server's series: metric, with further labels, and its values of one sample a minute.
Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """Servers of which one is to be reported.

    Attributes:
        bad: Its series; near the rule's limit where it has one.
        good: Others, near the limit from the other side.
        minute: The first at which the alert fires.
        labels: Of the alert, besides instance and severity; a sum has those it is summed by.
        ends: A minute at which it has ended, if it does.
    """

    bad: Series
    good: list[Series]
    minute: int
    labels: dict[str, str] = field(default_factory=lambda: ALL)
    ends: int | None = None


def gaps(metric: str, *, inside: int, limit: str, above: str) -> Series:
    """Return a histogram of which ``inside`` of 1,000 a minute are within the limit."""
    bucket = f"quire:{metric}_seconds_bucket"
    counts = {limit: inside, above: 1000, "+Inf": 1000}
    return {f'{bucket}{{le="{le}"}}': f"0+{count}x60" for le, count in counts.items()}


def shares(part: str, whole: str, amount: int) -> Series:
    """Return counters of which one grows by ``amount`` for 1,000 of the other."""
    return {part: f"0+{amount}x60", whole: f"0+{1000 - amount if '{' in whole else 1000}x60"}


TTFT, ITL = "time_to_first_token", "inter_token_latency"
RUNNING, WAITING = "quire:num_requests_running", "quire:num_requests_waiting"
STEPS, USAGE = "quire:num_steps_total", "quire:kv_cache_usage_perc"
FRAGMENTATION = "quire:kv_cache_fragmentation_perc"
REFUSED = 'quire:admission_rejections_total{reason="queued_tokens"}'
ENDED = "quire:request_success_total"
ERROR, STOP = f'{ENDED}{{finished_reason="error"}}', f'{ENDED}{{finished_reason="stop"}}'
LATE = 'quire:request_timeouts_total{stage="decode"}'
REPEATED, COMPUTED = "preemption_recomputed_tokens_total", "num_computed_tokens_total"
REPEATED, COMPUTED = f"quire:{REPEATED}", f"quire:{COMPUTED}"
MEMORY = 'quire:process_memory_bytes{process="server"}'
ENGINE_MEMORY = 'quire:process_memory_bytes{process="engine"}'
RESTARTS, CORRUPTED = "quire:engine_restarts_total", "quire:kv_canary_failures_total"

CASES = {
    "QuireDown": Case({"up": "1x4 0x5 1x9"}, [{"up": "1x20"}], 6, {"job": "quire"}, ends=12),
    "QuireEngineRestarted": Case({RESTARTS: "0x5 1x40"}, [{RESTARTS: "3x40"}], 6, ends=22),
    "QuireNoProgress": Case(
        {RUNNING: "1x20", WAITING: "2x20", STEPS: "0+600x4 2400x9 2400+600x9"},
        [
            {RUNNING: "1x20", WAITING: "2x20", STEPS: "0+1x20"},
            {RUNNING: "0x20", WAITING: "0x20", STEPS: "600x20"},
        ],
        minute=8,
        ends=16,
    ),
    "QuireQueueGrows": Case(
        {WAITING: "1x4 2x4 3x4 4x4 5x20"},
        [{WAITING: "3x40"}, {WAITING: "5 4 3 2 1x40"}],
        15,
        ends=26,
    ),
    "QuireRefuses": Case(
        {REFUSED: "900+7x60"}, [{REFUSED: "900+5x60"}], 9, {"reason": "queued_tokens"}
    ),
    "QuireSlowFirstToken": Case(
        gaps(TTFT, inside=985, limit="5.0", above="7.5"),
        [gaps(TTFT, inside=970, limit="2.5", above="5.0")],
        minute=11,
        labels={},
    ),
    "QuireSlowTokens": Case(
        gaps(ITL, inside=985, limit="0.5", above="0.75"),
        [gaps(ITL, inside=970, limit="0.4", above="0.5")],
        minute=11,
        labels={},
    ),
    "QuireErrors": Case(shares(ERROR, STOP, 11), [shares(ERROR, STOP, 9)], 6, {}),
    "QuireDeadlinesMissed": Case(shares(LATE, STOP, 53), [shares(LATE, STOP, 40)], 6, {}),
    "QuireCacheFull": Case({USAGE: "0.96x40"}, [{USAGE: "0.9x40"}], 10),
    "QuireCacheFragmented": Case(
        {FRAGMENTATION: "0.35x40", USAGE: "0.6x40"},
        [
            {FRAGMENTATION: "0.25x40", USAGE: "0.6x40"},
            {FRAGMENTATION: "0.35x40", USAGE: "0.45x40"},
        ],
        minute=15,
    ),
    "QuireCacheCorrupted": Case({CORRUPTED: "0x5 1x90"}, [{CORRUPTED: "2x90"}], 6, ends=67),
    "QuirePreempts": Case(shares(REPEATED, COMPUTED, 110), [shares(REPEATED, COMPUTED, 90)], 11),
    "QuireServerMemoryGrows": Case(
        {MEMORY: "70000000+1153434x200", ENGINE_MEMORY: "80000000x200"},
        [{MEMORY: "70000000+943718x200", ENGINE_MEMORY: "80000000+9000000x200"}],
        minute=121,
        labels={**ALL, "process": "server"},
    ),
}


def with_labels(metric: str, instance: str) -> str:
    """Return a series' name as Prometheus has it after a scrape."""
    name, _, labels = metric.partition("{")
    further = {} if name == "up" else OWN
    own = {"job": "quire", "instance": instance, **further}
    words = [f'{key}="{value}"' for key, value in own.items()]
    return f"{name}{{{','.join([*words, *labels.rstrip('}').split(',')]).rstrip(',')}}}"


def unit_test(name: str, rules: Path) -> dict[str, Any]:
    """Return promtool's form of a case: one minute too early, the first one, and the end."""
    case, rule = CASES[name], RULES[name]
    servers = {"bad:8000": case.bad} | {f"good:{i}": s for i, s in enumerate(case.good)}
    series = [
        {"series": with_labels(metric, instance), "values": values}
        for instance, part in servers.items()
        for metric, values in part.items()
    ]
    labels = {"instance": "bad:8000", **case.labels, **rule["labels"]}
    summary = rule["annotations"]["summary"]
    for key, value in labels.items():
        summary = summary.replace(f"{{{{ $labels.{key} }}}}", value)
    fires = [{"exp_labels": labels, "exp_annotations": rule["annotations"] | {"summary": summary}}]
    looks = [(case.minute - 1, []), (case.minute, fires)]
    looks += [] if case.ends is None else [(case.ends, [])]
    tests = [{"eval_time": f"{m}m", "alertname": name, "exp_alerts": found} for m, found in looks]
    group = {"interval": "1m", "input_series": series, "alert_rule_test": tests}
    return {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [group]}


@pytest.fixture(scope="module")
def promtool() -> Any:
    """Return a function that runs it and returns exit code and output."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")

    def run(*arguments: str | Path) -> tuple[int, str]:
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_files_are_accepted(promtool):
    code, text = promtool("check", "rules", FOLDER / "alerts.yml")
    assert code == 0 and f"{len(RULES)} rules found" in text, text
    code, text = promtool("check", "config", FOLDER / "prometheus.yml")
    assert code == 0 and "is valid prometheus config file syntax" in text, text


def test_every_rule_has_a_case():
    assert CASES.keys() == RULES.keys()


@pytest.mark.parametrize("name", RULES)
def test_it_fires_in_time_and_for_no_other_series(promtool, name, tmp_path):
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(unit_test(name, FOLDER / "alerts.yml")))
    code, text = promtool("test", "rules", path)
    assert code == 0, text


def changed_rules(name: str) -> list[dict[str, Any]]:
    """Return the rule with each of its numbers a quarter higher and lower; 0 as 5 and as -1."""
    rule, changed = RULES[name], []

    def change(key: str, value: str) -> None:
        changed.append({**copy.deepcopy(rule), key: value})

    for match in re.finditer(r"[<>=] ([\d.]+)", rule["expr"]):
        number = float(match[1])
        for other in (number * 1.25 or 5, number / 1.25 or -1):
            # A queue of nothing does not grow for ten minutes: above -1 says what above 0 does.
            if name == "QuireQueueGrows" and other == -1 and match.start() < 30:
                continue
            change(
                "expr", rule["expr"][: match.start(1)] + f"{other:f}" + rule["expr"][match.end(1) :]
            )
    if "for" in rule:
        count, unit = int(rule["for"][:-1]), rule["for"][-1]
        minutes = count * (60 if unit == "h" else 1)
        change("for", f"{minutes + 1}m")
        change("for", f"{minutes - 1}m")
    return changed


@pytest.mark.parametrize("name", RULES)
def test_a_changed_rule_is_noticed(promtool, name, tmp_path):
    rules, path = tmp_path / "rules.yml", tmp_path / "test.yml"
    path.write_text(json.dumps(unit_test(name, rules)))
    changed = changed_rules(name)
    assert changed
    for rule in changed:
        rules.write_text(json.dumps({"groups": [{"name": "changed", "rules": [rule]}]}))
        code, text = promtool("test", "rules", path)
        assert code == 1 and "FAILED" in text and "exp:" in text, (rule, text)


def test_the_series_have_the_labels_of_a_server(series):
    """What the cases feed to the rules differs from a real scrape in its values alone."""
    for name, case in CASES.items():
        for metric in {**case.bad, **{m: v for part in case.good for m, v in part.items()}}:
            stem, _, labels = with_labels(metric, "i").rstrip("}").partition("{")
            if stem == "up":
                continue
            own = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            assert own.pop("job") == "quire" and own.pop("instance") == "i"
            fixed = {key: value for key, value in own.items() if key not in OWN}
            assert any(
                one.keys() == own.keys() and fixed.items() <= one.items() for one in series[stem]
            ), (name, metric)
