"""``quire bench spec`` against a server that proposes, and its figures on counts made by hand."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import subprocess
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from quire.bench.latency_metrics import Latencies
from quire.bench.load_client import Record
from quire.bench.proposals import Proposals, parse_proposals
from quire.bench.sample_texts import built_in, read_prompts
from quire.bench.spec import LoadResult, RoundPart, SpecRun, Workload, metrics_of, run_spec
from quire.bench.spec_options import SpecOptions
from quire.bench.spec_report import spec_document
from quire.bench.workload import BenchRequest
from quire.core.errors import ConfigError
from tests.commands import run_quire
from tests.servers import start_server

#: Always as many: what an engine that adapts proposes depends on measured times.
CONFIG = '{"method": "ngram", "num_speculative_tokens": 4, "adaptive": false}'
SMALL = ("--concurrency", "2", "--rounds", "2", "--num-prompts", "3", "--output-len", "24")
EXPOSITION = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 6.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 4.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_draft_tokens_created{engine="0",model_name="m"} 1.7e9
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 25.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="10"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 1.0
"""


@pytest.fixture(scope="module")
def proposing() -> Iterator[str]:
    """The address of ``quire serve`` with quire-tiny and n-gram proposals."""
    flags = ["--memory", "256MiB", "--threads", "1", "--speculative-config", CONFIG]
    with start_server(flags) as process:
        process.wait_ready()
        yield process.address


@pytest.fixture(scope="session")
def bench_spec() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``quire bench spec`` with arguments."""
    return partial(run_quire, "bench", "spec")


def test_a_server_with_and_without(proposing, bench_spec, tmp_path):
    flags = ["--concurrency", "1,3", "--rounds", "2", "--num-prompts", "4", "--dataset", "copy"]
    flags += ["--output-len", "32", "--save-result", "--result-dir", str(tmp_path)]
    flags += ["--metadata", "machine=mine", "--result-filename", "r.json"]
    done = bench_spec("--base-url", proposing, *flags)
    assert done.returncode == 0, done.stderr
    assert "P99 of E2EL rests on 8 samples (fewer than 100)" in done.stderr
    assert "answers with and without, clients 3: all 8 are the same" in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["machine"] == "mine" and found["model_id"] == "quire-tiny"
    assert [load["max_concurrency"] for load in found["loads"]] == [1, 3]
    for load in found["loads"]:
        on, off = load["with"], load["without"]
        assert (load["num_compared"], load["num_different"]) == (8, 0)
        assert on["completed"] == off["completed"] == 8
        assert on["total_output_tokens"] == off["total_output_tokens"] > 8
        drafts, held = on["spec_decode_num_drafts"], on["spec_decode_accepted_tokens"]
        assert on["spec_decode_draft_tokens"] >= drafts > 0
        rates = on["spec_decode_per_position_acceptance_rates"]
        assert sum(rates) * drafts == pytest.approx(held) and held > 0
        assert rates == sorted(rates, reverse=True) and rates[0] <= 1
        assert 1 < on["tokens_per_forward"] <= on["spec_decode_acceptance_length"]
        ratio = load["ratio"]
        assert len(ratio["rounds"]) == 2
        assert ratio["min"] <= ratio["median"] <= ratio["max"]


def test_sampled_answers_to_prompts_of_a_file(proposing, bench_spec, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one two three one two three one"}\n\n{"prompt": "a b a b a b"}\n')
    flags = ["--backend", "openai", "--temperature", "0.8", "--ignore-eos", "--append-result"]
    flags += ["--result-dir", str(tmp_path), "--result-filename", "r.jsonl"]
    flags += ["--prompts", str(path), "--speculative", '{"tokens": 2}']
    done = bench_spec("--base-url", proposing, *SMALL, *flags)
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "r.jsonl").read_text().splitlines()
    (load,) = json.loads(line)["loads"]
    assert (load["num_compared"], load["num_different"]) == (6, 0)
    assert load["with"]["total_output_tokens"] == 6 * 24
    assert not any(load["with"]["spec_decode_per_position_acceptance_rates"][2:])


def test_time_per_token_is_no_gap_between_chunks(proposing):
    options = SpecOptions(base_url=proposing, concurrency="1", rounds=1, num_prompts=4)
    run = asyncio.run(run_spec(options, lambda text: None, lambda record: None))
    (part,) = run.loads[0].with_speculation
    several = [r for r in part.records if 1 < len(r.times) < r.num_output_tokens]
    # A client that was held up for a whole answer has read all of it at once.
    several = [r for r in several if r.times[0] < r.times[-1]]
    assert several and all(len(r.times) <= r.num_output_tokens for r in part.records)
    for item in map(Latencies.of, several):
        assert item.tpot is not None and item.tpot < sum(item.itls) / len(item.itls)


def test_a_server_without_speculation_is_told_at_once(server, bench_spec):
    done = bench_spec("--base-url", server, *SMALL)
    assert done.returncode == 1 and done.stdout == ""
    assert "nothing can be proposed. Start it with --speculative-config." in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_field_that_does_nothing_is_told(proposing, bench_spec):
    done = bench_spec("--base-url", proposing, *SMALL, "--dataset", "copy", "--without", "{}")
    assert done.returncode == 1 and done.stdout == ""
    assert "nothing must be proposed for requests with {}" in done.stderr


def test_no_proposals_at_all_are_told(proposing, bench_spec):
    done = bench_spec("--base-url", proposing, *SMALL, "--speculative", '{"tokens": 0}')
    assert done.returncode == 1 and "nothing was proposed" in done.stderr
    assert "all 6 are the same" in done.stdout


def test_refused_fields_are_told_before_anything_is_measured(proposing, bench_spec):
    done = bench_spec("--base-url", proposing, *SMALL, "--speculative", '{"method": "medusa"}')
    assert done.returncode == 1 and done.stdout == ""
    assert "warm-up requests must succeed; got HTTP 400" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "1,x"],
        ["--concurrency", "0"],
        ["--concurrency", "4,4"],
        ["--rounds", "0"],
        ["--speculative", "{"],
        ["--without", "[]"],
        ["--prompts", "/no/such/file"],
        ["--save-result", "--metadata", "loads=1"],
        ["--label", "x"],
        ["--plot", "picture.txt"],
    ],
)
def test_mistakes_are_one_sentence(bench_spec, arguments):
    if "--plot" in arguments and not importlib.util.find_spec("matplotlib"):
        arguments = ["--plot", "picture.png"]
    done = bench_spec(*arguments)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert "[bench] " in done.stderr and arguments[-2].removeprefix("--") in done.stderr


def test_counts_of_a_server():
    found = parse_proposals(EXPOSITION)
    assert found == Proposals(10, 40, 25, (10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1))
    assert parse_proposals(EXPOSITION.replace("vllm:", "quire:")) == found
    assert parse_proposals("# TYPE up gauge\nup 1.0\n") is None
    with pytest.raises(ConfigError, match="Prometheus"):
        parse_proposals("<html>\n")


def test_what_the_counts_come_to():
    found = Proposals(12, 44, 26, (11, 8, 5, 2)).since(Proposals(2, 4, 1, (1,)))
    assert found == Proposals(10, 40, 25, (10, 8, 5, 2))
    assert found.acceptance_rate == 62.5 and found.acceptance_length == 3.5
    assert found.rates_by_position == [1.0, 0.8, 0.5, 0.2]
    # Ten rounds brought 35 tokens, and five forwards without proposals one each.
    assert found.tokens_per_forward(40) == 40 / 15
    assert found + Proposals(1, 5, 1, (1, 0, 0, 0, 0)) == Proposals(11, 45, 26, (11, 8, 5, 2, 0))
    nothing = Proposals()
    assert math.isnan(nothing.acceptance_rate) and math.isnan(nothing.acceptance_length)
    assert nothing.rates_by_position == [] and nothing.tokens_per_forward(7) == 1.0


def part(seconds: float, *texts: str, error: str | None = None) -> RoundPart:
    """Make a part whose requests have ten tokens each."""
    records = [
        Record(BenchRequest("", 0, 10), 0.0, 0.0, [1.0, 2.0], text, 4, 10, True, error)
        for text in texts
    ]
    return RoundPart(records, seconds, Proposals(2, 8, 5, (2, 2, 1)))


def test_the_ratio_is_the_median_of_the_rounds():
    off = [part(2.0, "a", "b"), part(4.0, "c", "d"), part(1.0, "e"), part(1.0, "f", error="cut")]
    on = [part(1.0, "a", "b"), part(1.0, "c", "D"), part(2.0, "e"), part(1.0, "f")]
    load = LoadResult(2, off, on)
    assert load.ratios() == [2.0, 4.0, 0.5] and load.ratio() == (2.0, 0.5, 4.0)
    assert load.compared() == (5, 1)
    assert load.proposals() == Proposals(8, 32, 20, (8, 8, 4))
    assert metrics_of(off).output_throughput == 50 / 8.0
    assert LoadResult(1, [part(1.0, "a", error="cut")], [part(1.0, "a")]).ratio() is None


def test_both_ways_ask_the_same_and_share_nothing():
    options = SpecOptions(dataset="chat", seed=7)
    conversations = built_in("chat")
    workload = Workload(options, conversations)
    count = len(conversations) + 2
    ways = [workload.jobs("1 0", 0, count, with_speculation=way) for way in (False, True)]
    later = workload.jobs("1 1", count, count, with_speculation=True)
    for off, on in zip(*ways, strict=True):
        for name in ("messages", "seed"):
            assert off.fields[name] == on.fields[name]
        assert off.fields["speculative"] is False and "speculative" not in on.fields
    salts = [job.fields["cache_salt"] for job in (*ways[0], *ways[1], *later)]
    assert len(set(salts)) == 6
    # Under one salt nothing is asked twice.
    asked = [(job.fields["cache_salt"], str(job.fields["messages"])) for job in (*ways[1], *later)]
    assert len(set(asked)) == len(asked)
    assert len({job.fields["seed"] for job in (*ways[1], *later)}) == 2 * count


def test_enough_requests_for_the_percentile():
    assert SpecOptions().part_size(1) * 5 >= 100
    assert SpecOptions(rounds=3).part_size(4) * 3 >= 100
    assert SpecOptions().part_size(64) == 128 and SpecOptions(num_prompts=3).part_size(64) == 3


@pytest.mark.parametrize("dataset", ["mixed", "chat", "copy", "prose"])
def test_prompts_that_come_along(dataset):
    texts = [message["content"] for (message,) in built_in(dataset)]
    assert len(set(texts)) == len(texts) >= 12
    if dataset != "mixed":
        assert set(texts) < {message["content"] for (message,) in built_in("mixed")}


def test_conversations_of_a_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    path.write_text(json.dumps({"messages": turns}) + "\n" + '{"prompt": "Grüße"}\n')
    found = read_prompts(path)
    assert found == [turns, [{"role": "user", "content": "Grüße"}]]
    with pytest.raises(ConfigError, match="takes one text each; got 2 messages"):
        Workload(SpecOptions(backend="openai"), found)
    for line in ('{"text": "x"}', '{"prompt": ["x"]}', '{"messages": []}', "[]", "{", ""):
        path.write_text(line + "\n")
        with pytest.raises(ConfigError, match=r"must (be JSON|have)"):
            read_prompts(path)


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="pictures need matplotlib")
def test_a_picture_of_the_result(tmp_path):
    from quire.bench.plot_file import check_plot
    from quire.bench.spec_plot import draw

    failed = LoadResult(4, [part(1.0, "a", error="cut")], [part(1.0, "a")])
    run = SpecRun("m", [LoadResult(1, [part(2.0, "a")], [part(1.0, "a")]), failed])
    path = tmp_path / "spec.svg"
    check_plot(path)
    draw(spec_document(run, SpecOptions(concurrency="1,4")), path)
    assert "<svg" in path.read_text()
