"""What a scrape shows."""

from __future__ import annotations

import re
from collections import Counter

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.core.metrics import METRICS
from quire.server.observability.metrics_endpoint import (
    MAX_UNLOADED,
    WINDOW_SECONDS,
    ModelMetrics,
    ModelSamples,
    ServerMetrics,
    Throughput,
)
from quire.settings.config import EngineConfig

HISTOGRAMS = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_prefill_kv_computed_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
    "request_num_preemptions",
]
#: Only an engine in a process of its own has the first, only --kv-cache-metrics the next ones, only
#: a machine that `quire doctor` has measured those after them, and others an engine with proposers,
#: adapters or tiers.
ELSEWHERE = {
    "engine_restarts", "kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds", "model_flops_utilization_perc",
    "model_bandwidth_utilization_perc",
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos", "spec_decode_low_acceptance",
    "spec_decode_num_failed_proposals",
    "lora_requests_info", "lora_adapters", "lora_adapter_bytes", "lora_adapter_loads",
    "lora_adapter_evictions",
    "kv_offload_blocks", "kv_offload_held_bytes", "kv_offload_load_bytes", "kv_offload_load_time",
    "kv_offload_load_size", "kv_offload_store_bytes", "kv_offload_store_time",
    "kv_offload_store_size", "kv_offload_dropped_blocks", "kv_offload_damaged_blocks",
    "kv_offload_failures", "prefill_requests", "rank_memory_bytes", "expert_imbalance",
    "collective_calls", "collective_bytes",
}  # fmt: skip


def families(client):
    text = client.get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_every_metric_is_there_with_help_and_type(live):
    live.http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2})
    text = live.http.get("/metrics").text
    found = {f.name: f for f in text_string_to_metric_families(text)}
    for stem, metric in METRICS.items():
        if stem in ELSEWHERE:
            found.pop(f"quire:{stem}", None)
            continue
        family = found.pop(f"quire:{stem}")
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert family.samples
        for sample in family.samples:
            assert sample.labels["model_name"] == "tiny" and sample.labels["engine"] == "0"
    assert sorted(found) == [
        "http_request_duration_seconds",
        "http_request_size_bytes",
        "http_requests",
        "http_response_size_bytes",
        "process_cpu_seconds",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    ]
    assert "_created" not in text
    for line in text.splitlines():
        name = line.split("{")[0].split(" ")[0]
        assert line.startswith("#") or f"# HELP {name.split('_bucket')[0]}" in text or any(
            f"# HELP {name.removesuffix(end)}" in text for end in ("_total", "_sum", "_count")
        ), line  # fmt: skip


def test_counts_follow_requests(live):
    def counts():
        names = [*(f"{name}_count" for name in HISTOGRAMS), "generation_tokens_total"]
        names += ["prompt_tokens_total", "request_max_num_generation_tokens_sum"]
        return {name: live.metric(f"quire:{name}") for name in names} | {
            "length": live.metric("quire:request_success_total", 'finished_reason="length"'),
            "http": live.metric(
                "http_requests_total", 'handler="/v1/completions",method="POST",status="2xx"'
            ),
        }

    live.http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 1})
    before = counts()
    body = {"prompt": "abc", "max_tokens": 7, "ignore_eos": True, "n": 2}
    live.http.post("/v1/completions", json=body)
    change = {name: value - before[name] for name, value in counts().items()}
    per_request = dict.fromkeys((f"{name}_count" for name in HISTOGRAMS), 1.0)
    assert change == per_request | {
        "inter_token_latency_seconds_count": 12.0,
        "time_per_output_token_seconds_count": 12.0,
        "request_generation_tokens_count": 2.0,
        "request_max_num_generation_tokens_sum": 7.0,
        "generation_tokens_total": 14.0,
        "prompt_tokens_total": live.http.post("/tokenize", json={"prompt": "abc"}).json()["count"],
        "length": 2.0,
        "http": 1.0,
    }


def test_refusals_are_counted(serve, engine, monkeypatch):
    monkeypatch.setattr("quire.server.http.sse.HEADERS_WITHIN_SECONDS", 0.01)  # without a token
    engine.hold_after = 0
    client = serve(max_num_queued_reqs=1)
    with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}):
        while not engine.open_requests:
            pass
        assert client.post("/v1/completions", json={"prompt": "b"}).status_code == 429
        engine.released.set()
    (family,) = [f for name, f in families(client).items() if name.endswith("rejections")]
    counted = {s.labels["reason"]: s.value for s in family.samples}
    assert counted.pop("queued_requests") == 1
    keys = {"key_requests", "key_tokens"}
    door = {"host", "origin", "connections"}
    assert set(counted) == {"queued_tokens", "shutdown", *keys, *door}
    assert not any(counted.values())


def test_http_by_route(client):
    for path in ("/v1/models", "/v1/models/quire-tiny", "/v1/models/none", "/nothing", "/health"):
        client.get(path)
    body = b'{"prompt": "abc", "max_tokens": 2}'
    answer = client.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    found = families(client)
    counts = Counter()
    for sample in found["http_requests"].samples:
        counts[sample.labels["handler"], sample.labels["status"]] = sample.value
    assert counts == {
        ("/v1/models", "2xx"): 1,
        ("/v1/models/{model:path}", "2xx"): 1,
        ("/v1/models/{model:path}", "4xx"): 1,
        ("none", "4xx"): 1,
        ("/v1/completions", "2xx"): 1,
    }
    for kind, size in (("request", len(body)), ("response", len(answer.content))):
        (total,) = [
            s.value
            for s in found[f"http_{kind}_size_bytes"].samples
            if s.name.endswith("_sum") and s.labels["handler"] == "/v1/completions"
        ]
        assert total == size


@pytest.mark.parametrize("prefix", ["vllm", "vllm:"])
def test_the_prefix_fits_other_dashboards(serve, prefix):
    found = families(serve(metrics_prefix=prefix))
    assert all(name.startswith(("vllm:", "http_", "process_")) for name in found)
    assert found["vllm:generation_tokens"].samples[0].value == 7
    # The names that guides have people grep for.
    for name in ("num_requests_running", "avg_generation_throughput_toks_per_s"):
        assert f"vllm:{name}" in found


def test_what_vllms_dashboards_ask_of_engine_and_process(live):
    """Their panels of sleep states, of the cache's size and of the process were empty."""
    states = ("awake", "weights_offloaded", "discard_all")
    name = "quire:engine_sleep_state"
    assert [live.metric(name, f'sleep_state="{state}"') for state in states] == [1, 0, 0]
    (line,) = (
        line
        for line in live.http.get("/metrics").text.splitlines()
        if line.startswith("quire:cache_config_info{")
    )
    num_blocks = sum(
        live.metric("quire:num_kv_blocks", f'state="{state}"') for state in ("used", "free")
    )
    assert f'num_gpu_blocks="{num_blocks:.0f}"' in line
    text = live.http.get("/metrics").text
    (rss,) = re.findall(r"^process_resident_memory_bytes (\S+)$", text, re.M)
    assert float(rss) == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


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


def test_memory_is_that_of_the_process(live):
    shown = live.metric("quire:process_memory_bytes", 'process="server"')
    assert shown == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    pools = [live.metric("quire:memory_bytes", f'pool="{p}"') for p in ("weights", "kv_cache")]
    assert all(size > 0 for size in pools)
    assert 0 <= live.metric("quire:host_cpu_usage_perc") <= 1


def test_throughput_is_of_the_last_seconds():
    now = [100.0]
    rate = Throughput(lambda: now[0])
    for _ in range(5):
        rate.add(20)
        now[0] += 1
    assert rate.value() == 100 / WINDOW_SECONDS
    now[0] = 112.5  # what happened up to 102 is too old
    assert rate.value() == 40 / WINDOW_SECONDS
    now[0] = 200
    assert rate.value() == 0


def test_lengths_go_on_in_the_buckets_of_a_longer_context():
    """A model that is loaded again may get another context length, and so other buckets."""
    short = ModelSamples({"request_prompt_tokens": [9.0, 1.0, 0.0, 2.0]}, (1, 2))
    long = ModelSamples({"request_prompt_tokens": [5.0, 0.0, 0.0, 1.0, 0.0, 0.0]}, (1, 2, 5, 10))
    told = {"request_prompt_tokens": [14.0, 1.0, 0.0, 3.0, 0.0, 0.0]}
    for samples in (short.after(long), long.after(short)):
        assert samples == ModelSamples(told, (1, 2, 5, 10))


def test_what_is_kept_of_unloaded_models_is_bounded(engine):
    metrics = ServerMetrics("quire", Counter())

    def come_and_go(name):
        model = ModelMetrics(engine, EngineConfig(), name)
        metrics.add(model)
        metrics.remove(model)

    for number in range(MAX_UNLOADED):
        come_and_go(f"model-{number}")
    come_and_go("model-0")  # the one unloaded last
    come_and_go("another")
    metrics.close()
    series = metrics.exposition()[0].decode().splitlines()
    names = [line for line in series if line.startswith("quire:generation_tokens_total")]
    assert len(names) == MAX_UNLOADED
    assert [name for name in names if '"model-0"' in name][0].endswith(" 14.0")
    assert not any('"model-1"' in name for name in names)
