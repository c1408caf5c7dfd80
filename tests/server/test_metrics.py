"""What a scrape shows."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

HISTOGRAMS = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
]
ENGINE = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "cache_config_info",
]


def samples(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {s.name: s for family in families for s in family.samples if s.name}


def test_the_names_dashboards_know(live):
    found = samples(live.http)
    assert {f"quire:{name}" for name in ENGINE} <= set(found)
    assert {f"quire:{name}_bucket" for name in HISTOGRAMS} <= set(found)
    for sample in found.values():
        assert sample.labels["model_name"] == "tiny" and sample.labels["engine"] == "0"


def test_counts_follow_requests(live):
    def counts():
        names = [*(f"{name}_count" for name in HISTOGRAMS), "generation_tokens_total"]
        return {name: live.metric(f"quire:{name}") for name in names} | {
            "length": live.metric("quire:request_success_total", 'finished_reason="length"')
        }

    before = counts()
    body = {"prompt": "abc", "max_tokens": 7, "ignore_eos": True, "n": 2}
    live.http.post("/v1/completions", json=body)
    change = {name: value - before[name] for name, value in counts().items()}
    per_request = dict.fromkeys((f"{name}_count" for name in HISTOGRAMS), 1.0)
    assert change == per_request | {
        "inter_token_latency_seconds_count": 12.0,
        "request_generation_tokens_count": 2.0,
        "generation_tokens_total": 14.0,
        "length": 2.0,
    }


@pytest.mark.parametrize("prefix", ["vllm", "vllm:"])
def test_the_prefix_fits_other_dashboards(serve, prefix):
    found = samples(serve(metrics_prefix=prefix))
    assert all(name.startswith("vllm:") for name in found)
    assert found["vllm:generation_tokens_total"].value == 7


def test_buckets_reach_below_and_above(client):
    text = client.get("/metrics").text
    for name, low, high in (
        ("inter_token_latency_seconds", "0.0005", "80.0"),
        ("e2e_request_latency_seconds", "0.001", "7680.0"),
        ("request_prompt_tokens", "1.0", "200.0"),
    ):
        edges = [
            line.split('le="')[1].split('"')[0]
            for line in text.splitlines()
            if line.startswith(f"quire:{name}_bucket")
        ]
        assert (edges[0], edges[-2], edges[-1]) == (low, high, "+Inf")
