"""The heads in the package: their size, and what quire-tiny keeps of their drafts."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from quire import LLM, SamplingParams  # noqa: E402
from quire.training.examples import Examples, write_states  # noqa: E402
from quire.training.rollouts import roll_out  # noqa: E402
from quire.training.target import TrainingTarget, load_vocabulary  # noqa: E402
from quire.training.train import measure_folder  # noqa: E402
from tests.sizes import sized  # noqa: E402

ASSETS = Path(__file__).parents[2] / "quire" / "assets"
TINY, HEADS = ASSETS / "quire-tiny", ASSETS / "quire-tiny-heads"
METHODS = ("eagle3", "eagle", "medusa", "mtp")
LAYERS = (1, 3, 5)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """quire-tiny's greedy answers to some of the held-out chats, with states."""
    lines = (TINY / "eval" / "questions.jsonl").read_text("utf-8").splitlines()
    llm = LLM(TINY, max_model_len=1024)
    chats = [json.loads(line)["messages"] for line in lines[:: sized(10, 5)]]
    asked = llm.chat(chats, SamplingParams(max_tokens=1), False)
    prompts = [output.prompt_token_ids for output in asked]
    rollouts = roll_out(llm, prompts, 256, temperatures=(0.0,))
    path = tmp_path_factory.mktemp("states") / "states.bin"
    target = TrainingTarget(TINY, LAYERS, 1024, threads=1)
    write_states(target, rollouts, path)
    return Examples(rollouts, path, target.width)


@pytest.fixture(scope="module")
def acceptances(held_out):
    vocabulary = load_vocabulary(TINY)
    return {m: measure_folder(HEADS / m, vocabulary, held_out, 4) for m in METHODS}


def test_all_of_them_take_at_most_four_megabytes():
    assert sum(path.stat().st_size for path in HEADS.rglob("*") if path.is_file()) <= 4e6


def test_they_are_of_one_size():
    sizes = [path.stat().st_size for path in HEADS.rglob("*.safetensors")]
    assert len(sizes) == len(METHODS)
    assert max(sizes) < 1.15 * min(sizes)


def test_eagle3_is_kept_most_and_medusa_least(acceptances):
    tokens = {method: one.tokens_per_round for method, one in acceptances.items()}
    assert tokens["eagle3"] > tokens["eagle"] > tokens["medusa"]
    assert tokens["eagle3"] > 2.9


def test_the_report_in_the_folder_is_of_these_weights(acceptances):
    for method, acceptance in acceptances.items():
        report = json.loads((HEADS / method / "acceptance.json").read_text())
        for reported, measured in zip(report["equal"], acceptance.equal, strict=False):
            assert abs(reported - measured) < 0.05
