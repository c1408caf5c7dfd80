"""The files of ``deploy/`` against a running server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from quire.server.server_options import ServerOptions
from tests.deploy.promql import read_names

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/quire.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
#: Prometheus makes these itself.
OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "instance"}


def expressions():
    for panel in PANELS:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
    for rule in ALERTS:
        yield pytest.param(rule["expr"], id=rule["alert"])


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_name_is_that_of_a_living_metric(series, expression):
    names = read_names(expression)
    assert names.metrics
    labels = set()
    for metric, matchers in names.metrics:
        if metric in OF_PROMETHEUS:
            continue
        assert metric in series, f"{metric} is not among the metrics"
        for label, value in matchers.items():
            values = {one.get(label) for one in series[metric]}
            assert None not in values and (value is None or value in values), (metric, label, value)
        labels.update(*series[metric])
    assert names.grouped <= labels | LABELS_OF_PROMETHEUS


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_say_what_to_do(alert):
    """The person who is woken had a summary and no next step."""
    assert alert["annotations"]["description"].endswith(".")
    page, anchor = alert["annotations"]["runbook_url"].split("#")
    headings = re.findall("^#+ (.*)$", (DEPLOY.parent / page).read_text(), re.MULTILINE)
    assert anchor == alert["alert"].lower() in [heading.lower() for heading in headings]


@pytest.mark.parametrize(
    ("expression", "metrics", "grouped"),
    [
        ("a:b_total", [("a:b_total", {})], set()),
        ('rate(x{l="v",k=~"a|b"}[5m])', [("x", {"l": "v", "k": None})], set()),
        ("sum by (le, q) (rate(x_bucket[$__rate_interval]))", [("x_bucket", {})], {"le", "q"}),
        ("sum(x) without (z) / on (w) y > bool 1e3", [("x", {}), ("y", {})], {"z", "w"}),
        ('x{l="by (a) y{"} offset 5m and 0.5 < y', [("x", {"l": "by (a) y{"}), ("y", {})], set()),
    ],
)
def test_names_are_read_right(expression, metrics, grouped):
    names = read_names(expression)
    assert (names.metrics, names.grouped) == (metrics, grouped)


def test_a_wrong_name_would_be_found(series):
    assert "quire:num_request_running" not in series
    with pytest.raises(AssertionError, match="no PromQL"):
        read_names("rate(x[5m]) # comment")


def test_alerts_are_well_formed():
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names)) > 10
    for rule in ALERTS:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]


def test_the_dashboard_is_well_formed():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    places = set()
    for panel in DASHBOARD["panels"]:
        box = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(box["x"], box["x"] + box["w"])
            for y in range(box["y"], box["y"] + box["h"])
        }
        assert not places & cells and box["x"] + box["w"] <= 24, panel["title"]
        places |= cells
    variables = {item["name"] for item in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(PANELS)))
    assert used <= variables


def test_the_scrape_finds_the_rules():
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert all((DEPLOY / "prometheus" / name).is_file() for name in scrape["rule_files"])
    (job,) = scrape["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("quire", "/metrics")


def test_the_unit_s_command_line_is_understood():
    text = (DEPLOY / "systemd/quire.service").read_text()
    (line,) = re.findall(r"^ExecStart=\S+/quire serve (.*)$", text, re.MULTILINE)
    from quire.cli.serve import serve

    known = {name for param in serve.params for name in (*param.opts, *param.secondary_opts)}
    assert {word for word in line.split() if word.startswith("--")} <= known
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop) > ServerOptions().shutdown_timeout + 10
