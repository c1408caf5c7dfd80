"""``quire bench serve`` against ``quire serve`` with quire-tiny: the command as people run it."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from quire.bench import load_client as client
from quire.bench.bench_options import BenchOptions
from quire.bench.load_run import run_benchmark
from quire.core.errors import ConfigError


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_a_run_counts_every_token(server, bench, tmp_path, backend):
    flags = ["--backend", backend, "--num-prompts", "12", "--max-concurrency", "4"]
    flags += ["--dataset-name", "lognormal", "--input-len", "20", "--output-len", "8"]
    flags += ["--tokenizer", "quire-tiny", "--num-warmups", "1", "--goodput", "ttft:60000"]
    flags += ["--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,90"]
    flags += ["--save-detailed", "--save-result", "--result-dir", str(tmp_path)]
    done = bench("--base-url", server, *flags, "--result-filename", "r.json", "--label", "x")
    assert done.returncode == 0, done.stderr
    assert "Successful requests:                     12" in done.stdout
    assert "P90 E2EL (ms):" in done.stdout and "Inter-token" not in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["completed"], found["failed"], found["label"]) == (12, 0, "x")
    assert found["model_id"] == "quire-tiny" and found["max_concurrent_requests"] <= 4
    assert sum(found["output_lens"]) == found["total_output_tokens"] > 0
    assert found["request_goodput"] == found["request_throughput"]
    assert found["errors"] == [""] * 12 and all(found["ttfts"])
    # ignore_eos: exactly as many tokens as were asked for.
    assert "ended before the output length" not in done.stderr
    if backend == "openai":
        assert "another length" not in done.stderr


def test_token_ids_come_as_they_were_made(server, bench, tmp_path):
    flags = ["--num-prompts", "8", "--input-len", "20", "--output-len", "5", "--vocab-size", "300"]
    flags += ["--request-rate", "50", "--save-result", "--result-dir", str(tmp_path)]
    done = bench("--base-url", server, *flags, "--append-result", "--result-filename", "r.jsonl")
    assert done.returncode == 0, done.stderr
    assert "Request rate configured (RPS):           50.00" in done.stdout
    (line,) = (tmp_path / "r.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["total_input_tokens"] == 160 and found["total_output_tokens"] == 40
    assert found["request_rate"] == 50.0 and "ttfts" not in found


def test_refusals_are_failures_with_words(server, bench):
    flags = ["--num-prompts", "3", "--input-len", "4", "--output-len", "2", "--vocab-size", "300"]
    done = bench("--base-url", server, *flags, "--extra-body", '{"top_p": 7}')
    assert done.returncode == 1
    assert "Failed requests:                         3" in done.stdout
    assert "failed 3 times: HTTP 400: " in done.stderr and "top_p" in done.stderr


def test_no_server_is_one_line(bench):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # kept, and without a listener
        done = bench("--port", str(taken.getsockname()[1]))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("quire: [bench] ") and done.stderr.count("\n") == 1


def test_a_server_that_says_nothing_is_given_up(monkeypatch):
    """The question whether it is ready waited for ever."""
    monkeypatch.setattr(client, "PROBE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError, match="must be ready; got no answer within 0.1 s"):
            asyncio.run(run_benchmark(BenchOptions(base_url=url, num_prompts=1)))


def test_several_values_of_a_flag_and_the_names_of_vllm(server, bench, tmp_path):
    """As vLLM's command takes them: --goodput ttft:MS tpot:MS; --backend vllm."""
    flags = ["--num-prompts", "2", "--input-len", "4", "--output-len", "2", "--vocab-size", "300"]
    flags += ["--goodput", "ttft:60000", "tpot:60000", "--metadata", "a=1", "b=2", "--save-result"]
    flags += ["--result-dir", str(tmp_path), "--result-filename=r.json", "--backend", "vllm"]
    done = bench("--base-url", server, *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["a"], found["b"], found["backend"]) == ("1", "2", "vllm")
    assert found["request_goodput"] == found["request_throughput"]


def test_an_ipv6_address_is_a_host():
    assert BenchOptions(host="::1", port=80).url() == "http://[::1]:80"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num-prompts", "0"],
        ["--save-result", "--metadata", "duration=x"],
        ["--save-result", "--result-dir", "/dev/null/there"],
        ["--save-result", "--result-dir", "/", "--result-filename", "tmp"],
        ["--goodput", "ttft:5", "else"],
        ["--base-url", "ftp://x"],
        ["--extra-body", "["],
        ["--dataset-name", "trace", "--dataset-path", "/no/such/file"],
    ],
)
def test_mistakes_are_one_sentence(bench, arguments):
    done = bench(*arguments)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert "[bench] " in done.stderr
