"""``quire eval``: of the embedded model, of a running server, and what is refused."""

import json
import re

import pytest

from quire.store.hub import resolve_model
from tests.servers import start_server

TEXT = str(resolve_model("quire-tiny") / "eval" / "heldout.txt")
SHORT = ("--max-tokens", "1200", "--window", "256", "--threads", "1")
QUESTIONS = [
    ("What is the capital of France?", "The capital of France is {}.", ["Oslo", "Paris"], 1),
    ("What is the opposite of tight?", "The opposite of tight is {}.", ["loose", "red"], 0),
]


def report_of(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def server():
    arguments = ["quire-tiny", "--memory", "256MiB", "--threads", "1"]
    with start_server(arguments) as process:
        process.wait_ready()
        yield process.address


@pytest.fixture(scope="module")
def choices(tmp_path_factory):
    path = tmp_path_factory.mktemp("choices") / "choices.jsonl"
    lines = [
        {"question": asked, "choices": [form.format(word) for word in words], "answer": answer}
        for asked, form, words, answer in QUESTIONS
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture(scope="module")
def here(quire):
    """The report of quire-tiny's own text, made in this process."""
    return report_of(quire("eval", *SHORT, "--json"))


def test_the_embedded_model_has_a_text_of_its_own(quire, here, tmp_path):
    text = here["text"]
    assert text["file"] == TEXT and text["num_tokens"] > 8000
    assert (text["num_counted"], text["num_windows"], text["window"]) == (1195, 5, 256)
    found = text["perplexity"]
    assert 1 < found["low"] < found["value"] < found["high"] < 2
    out = tmp_path / "report.json"
    result = quire("eval", "quire-tiny", "--perplexity", TEXT, *SHORT, "--output", str(out))
    assert result.returncode == 0, result.stderr
    assert json.loads(out.read_text()) == here
    assert re.search(rf"perplexity +{found['value']:.4f} +{found['low']:.4f} to", result.stdout)
    assert "5 windows of up to 256" in result.stdout


def test_a_rounded_model_next_to_its_reference(quire, here):
    options = ("-q", "int2", "--reference", "quire-tiny", *SHORT)
    report = report_of(quire("eval", *options, "--json"))
    found = report["comparison"]
    assert found["reference_perplexity"] == here["text"]["perplexity"]
    assert found["ratio"]["low"] > 1.1 and found["divergence"]["low"] > 0.05
    assert found["agreement"]["high"] < 0.95
    assert report["quantization"] == "int2" and report["reference"] == "quire-tiny"
    assert report["weight_bytes"] < report["reference_weight_bytes"] / 3


def test_a_model_next_to_itself(quire, choices):
    options = ("--reference", "quire-tiny", "--choices", choices, "--chat", "--perplexity", TEXT)
    shown = quire("eval", *options, *SHORT)
    assert shown.returncode == 0, shown.stderr
    for line in ("ratio +1.0000 +1.0000 to 1.0000", "KL divergence, nats +0 +0 to 0",
                 "same best token +100.00%", "difference +\\+0.00%"):  # fmt: skip
        assert re.search(line, shown.stdout), shown.stdout


def test_loss_by_position(quire):
    report = report_of(
        quire("eval", "--long-context", "--max-tokens", "3000", "--threads", "1", "--json")
    )
    assert report["text"]["window"] == 2048
    places = [(bucket["begin"], bucket["end"]) for bucket in report["positions"]]
    assert places == [(0, 256), (256, 1024), (1024, 2048)]
    assert sum(b["num_tokens"] for b in report["positions"]) == report["text"]["num_counted"]
    assert report["positions"][0]["loss"]["value"] > report["positions"][1]["loss"]["value"]


def test_a_server_gives_the_same_figures(quire, server, here):
    result = quire("eval", "--base-url", server, "--perplexity", TEXT, *SHORT[:4], "--json")
    report = report_of(result)
    assert report["model"] == "quire-tiny" and report["server"] == server
    found, expected = report["text"], here["text"]
    assert found["num_counted"] == expected["num_counted"]
    for name in ("perplexity", "loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)


def test_a_server_s_choices_are_those_of_this_process(quire, server, choices):
    options = ("--choices", choices, "--chat", "--json")
    there = report_of(quire("eval", "--base-url", server, *options))["choices"]
    here = report_of(quire("eval", *options, "--threads", "1"))["choices"]
    assert here["accuracy"]["value"] == here["accuracy_normalized"]["value"] == 1
    assert here["num_asked"] == here["num_answers"] == 2
    for ours, theirs in zip(here["questions"], there["questions"], strict=True):
        assert ours["pick"] == theirs["pick"] == ours["answer"]
        assert theirs["logprobs"] == pytest.approx(ours["logprobs"], rel=1e-5, abs=1e-5)


def test_a_tokenizer_here_cuts_texts_as_the_server_s_does(quire, server, here):
    options = ("--tokenizer", "quire-tiny", "--perplexity", TEXT, *SHORT[:4], "--json")
    report = report_of(quire("eval", "--base-url", server, *options))
    assert report["text"]["loss"] == pytest.approx(here["text"]["loss"], rel=1e-5)


def test_what_a_server_cannot_do_is_refused(quire, server, choices):
    asked = ("eval", "--base-url", server, "--choices", choices)
    for flags, message in (
        (("--reference", "quire-tiny"), "--reference needs all logits of both models"),
        (("-q", "int4"), "--quantization is the server's own setting"),
        (("--threads", "1"), "--threads is the server's own setting"),
    ):
        result = quire(*asked, *flags)
        assert result.returncode == 2 and message in result.stderr
    result = quire(*asked, "--model", "unknown")
    assert result.returncode == 1 and "unknown` does not exist" in result.stderr
    long = ("--base-url", server, "--perplexity", TEXT, "--window", "4096")
    assert "--window must be at most 2047" in quire("eval", *long).stderr


def test_other_tokens_are_refused_in_one_line(quire, model):
    result = quire("eval", "--reference", str(model), *SHORT)
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "--reference must have the vocabulary of MODEL; got" in result.stderr


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--perplexity", "nowhere.txt"), 1, "must be a file of UTF-8 text"),
        (("--output", "nowhere/out.json"), 1, "--output must be in a folder that exists"),
        (("--window", "4096"), 1, "--window must be at most 2048"),
        (("--window", "1"), 1, "--window must be at least 2"),
        (("--stride", "600"), 1, "--stride must be in 1..512"),
        (("--max-tokens", "1"), 1, "--max-tokens must leave a token to count"),
        (("--max-tokens", "0"), 2, "0 is less than 1"),
        (("--reference-dtype", "float32"), 2, "--reference-dtype must come with --reference"),
        (("--long-context", "--stride", "8"), 1, "--long-context must count every token"),
        (("--chat",), 1, "--chat must come with --choices"),
        (("--max-num-seqs", "4"), 2, "No such option"),
        (("--base-url", "ftp://x", "--perplexity", TEXT), 2, "must be http"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_flags_that_cannot_be_are_refused(flags, code, message):
    """In this process: none of them gets as far as a model."""
    from click.testing import CliRunner

    from quire.cli.measure.eval import evaluate
    from quire.core.errors import QuireError

    result = CliRunner().invoke(evaluate, list(flags))
    said = result.output if code == 2 else str(result.exception)
    assert message in said
    assert isinstance(result.exception, QuireError if code == 1 else SystemExit)


def test_a_model_without_a_text_needs_one(quire, model):
    result = quire("eval", str(model))
    assert result.returncode == 1
    assert "no eval/heldout.txt lies with the model. Give --perplexity FILE" in result.stderr


def test_a_bad_line_is_named(quire, tmp_path, choices):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "Once upon a time"}\n{"txt": "?"}\n')
    result = quire("eval", "--perplexity", str(path))
    assert result.returncode == 1 and "in line 2 of" in result.stderr
    assert result.stderr.count("\n") == 1
