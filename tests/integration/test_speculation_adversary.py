"""Drafters that are never right, on a real engine: few rounds, then nothing but tries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scripted_proposer import use_script
from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.core.outputs import RequestOutput
from quire.speculative.pace.controller import CHOICE_STEPS, Controller
from tests.draft_heads import medusa_tensors, normal, write_head
from tests.sizes import sized

TINY = ASSETS / "quire-tiny"
EAGLE3 = ASSETS / "quire-tiny-heads" / "eagle3"
PROMPT = "Once upon a time, there was a little girl who"
NUM_TOKENS, MOST_ROUNDS, LONGEST = sized(200, 400), 50, 8
LATER = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)

Create = Callable[..., LLM]


def random_draft(folder: Path, checkpoint: Callable[..., Path]) -> Path:
    """Return a model of random weights with quire-tiny's tokens."""
    shutil.copytree(checkpoint("tiny-llama", vocab_size=2048), folder)
    for path in TINY.glob("*token*"):
        shutil.copy(path, folder)
    return folder


def random_eagle3(folder: Path, *, has_mask: bool = False) -> Path:
    """Return the package's head with other weights."""
    rng = np.random.default_rng(3)
    file = SafetensorsFile(EAGLE3 / "model.safetensors")
    weights = {name: normal(rng, *entry.shape) for name, entry in file.entries.items()}
    config = json.loads((EAGLE3 / "config.json").read_text("utf-8"))
    if has_mask:
        weights["mask_hidden"] = normal(rng, 1, weights["fc.weight"].shape[1])
        config["ptd_token_id"] = 1
    return write_head(folder, weights, config)


@pytest.fixture
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a row cost a hundredth of a step, and a proposal a twentieth: much is tried.

    Of real seconds a hundredth may go into tries: whenever the machine stalls, for many of them.
    """
    create, end = Controller.__init__, Controller.step_ended

    def row_seconds(rows: int) -> float:
        return 1e-3 + 1e-5 * rows

    def begun(self: Controller, methods: Any, measured: Mapping[int, float]) -> None:
        create(self, methods, {rows: row_seconds(rows) for rows in measured})

    def ended(self: Controller, num_rows: int, seconds: float, draft_seconds: float) -> None:
        drafting = 5e-5 if draft_seconds else 0.0
        end(self, num_rows, row_seconds(num_rows) + drafting, drafting)

    monkeypatch.setattr(Controller, "__init__", begun)
    monkeypatch.setattr(Controller, "step_ended", ended)


@pytest.fixture(params=["draft_model", "medusa", "eagle3", "parallel", "script"])
def adversary(
    request: pytest.FixtureRequest,
    _steady: None,
    create_llm: Create,
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    device: str,
) -> LLM:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    method = request.param
    if method == "script":
        llm = create_llm(TINY, max_model_len=1024)
        use_script(llm.engine, [], 0.0, num_speculative_tokens=LONGEST)
        return llm
    make: dict[str, Callable[[], Path]] = {
        "draft_model": lambda: random_draft(tmp_path / "draft", checkpoint),
        "medusa": lambda: write_head(tmp_path / "medusa", medusa_tensors(256, num_heads=4)),
        "eagle3": lambda: random_eagle3(tmp_path / "eagle3"),
        "parallel": lambda: random_eagle3(tmp_path / "parallel", has_mask=True),
    }
    name = "eagle3" if method == "parallel" else method
    config = {"method": name, "model": str(make[method]())}
    return create_llm(TINY, max_model_len=1024, speculative_config=config)


def num_rounds(llm: LLM) -> float:
    return count(llm, "spec_decode_num_drafts")


def count(llm: LLM, stem: str) -> float:
    samples: dict[str, Any] = llm.engine.stats()
    return sum(value for name, value in samples.items() if name.split("{")[0] == stem)


def test_what_never_holds_is_only_tried_after_50_rounds(
    adversary: LLM, plain_answers: Callable[..., list[RequestOutput]]
) -> None:
    """Rounds of a whole answer are fewer than 50, and all but the first ones are of one token.

    Tokens past the first of a round are counted over two answers: a second one is proposed while
    both are expected to hold in :data:`~quire.speculative.pace.controller.LEAST_GAIN` of all cases,
    that is, for 9 rounds.
    """
    plain = plain_answers(TINY, [PROMPT], LATER)
    first = adversary.generate([PROMPT], LATER, use_tqdm=False)
    rounds = num_rounds(adversary)
    assert 0 < rounds <= MOST_ROUNDS
    adversary.generate([PROMPT], LATER, use_tqdm=False)
    rounds_later = num_rounds(adversary) - rounds
    assert rounds_later <= MOST_ROUNDS
    deep_tokens = count(adversary, "spec_decode_num_draft_tokens") - rounds - rounds_later
    assert deep_tokens <= (9 + CHOICE_STEPS) * (LONGEST - 1)
    assert first[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
