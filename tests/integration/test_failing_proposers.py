"""A proposer that raises costs its proposals, and no answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.scripted_proposer import ScriptedProposer, use_script
from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from quire.core.outputs import RequestOutput
from quire.kernels.batch.token_table import IntArray
from quire.speculative.drafters.draft_model import DraftModelProposer
from quire.speculative.drafters.medusa import MedusaProposer
from quire.speculative.drafters.recurrent import RecurrentProposer
from quire.speculative.proposer import DraftDraw
from tests.sizes import sized

PROMPTS = [[5, 9, 30, 7], [8, 8, 3], [40, 41, 42, 43, 44]]
FAILED = 'spec_decode_num_failed_proposals{method="medusa"}'
HELD = 'spec_decode_num_accepted_tokens{method="medusa"}'

Create = Callable[..., LLM]


class FailingProposer(ScriptedProposer):
    """Fails in every other call, when it has drawn and written something."""

    num_calls = 0

    def propose(self, rows: IntArray, most: IntArray, draw: DraftDraw) -> IntArray:
        """Propose, or raise."""
        FailingProposer.num_calls += 1
        counts = super().propose(rows, most, draw)
        if FailingProposer.num_calls % 2:
            self._table.token_ids[rows, self._table.num_tokens[rows]] = -1
            raise ValueError("no more of this")
        return counts


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_requests_go_on_without_proposals(
    create_llm: Create,
    monkeypatch: pytest.MonkeyPatch,
    quire_log: list[logging.LogRecord],
    acceptance: str,
) -> None:
    own = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, logprobs=1)
    llm = create_llm()
    plain = [o.outputs[0] for o in llm.generate(PROMPTS, own)]
    script: list[Sequence[int]] = [
        [*prompt, *answer.token_ids] for prompt, answer in zip(PROMPTS, plain, strict=True)
    ]
    monkeypatch.setattr("benchmarks.scripted_proposer.ScriptedProposer", FailingProposer)
    settings: dict[str, Any] = {"num_speculative_tokens": 3, "adaptive": False}
    FailingProposer.num_calls = 0
    controller = use_script(llm.engine, script, 0.9, acceptance=acceptance, **settings)
    found = [o.outputs[0] for o in llm.generate(PROMPTS, own)]
    assert [(o.token_ids, o.logprobs, o.finish_reason) for o in found] == [
        (o.token_ids, o.logprobs, o.finish_reason) for o in plain
    ]
    assert controller.samples()[HELD] > 20
    assert llm.engine.stats()[FAILED] == (FailingProposer.num_calls + 1) // 2 > 3
    errors = [record for record in quire_log if record.levelno == logging.ERROR]
    (error,) = errors
    assert error.getMessage().startswith("[speculation] medusa failed: ")
    assert error.exc_info is not None and "no more of this" in str(error.exc_info[1])


DRAFTERS = {
    "medusa": MedusaProposer,
    "eagle3": RecurrentProposer,
    "draft_model": DraftModelProposer,
}
CALLS = ["begin", "observe", "fork", "copy_blocks", "forget"]


@pytest.mark.parametrize(
    ("method", "call"),
    [(method, call) for method in DRAFTERS for call in CALLS if hasattr(DRAFTERS[method], call)],
)
def test_every_other_call_that_fails_costs_no_answer(
    create_llm: Create,
    monkeypatch: pytest.MonkeyPatch,
    quire_log: list[logging.LogRecord],
    plain_answers: Callable[..., list[RequestOutput]],
    device: str,
    method: str,
    call: str,
) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    kind = DRAFTERS[method]
    num_calls = 0
    whole = getattr(kind, call)

    def failing(self: Any, *args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3 == 2:
            raise ValueError("no more of this")
        return whole(self, *args)

    tiny = ASSETS / "quire-tiny"
    own = [
        SamplingParams(
            max_tokens=sized(24, 40), temperature=0.8, seed=i, n=1 + i, ignore_eos=True, logprobs=1
        )
        for i in range(3)
    ]
    prompts = ["Once upon a time, there", "The dog ran to", "List three fruits."]
    settings: dict[str, Any] = {"block_size": 8, "max_num_batched_tokens": 16}
    expected = plain_answers(tiny, prompts, own)
    monkeypatch.setattr(kind, call, failing)
    config: dict[str, Any] = {"method": method, "adaptive": False}
    if method == "draft_model":
        config["model"] = "quire-tiny-draft"
    llm = create_llm(tiny, **settings, speculative_config=config)
    found = [llm.generate(prompts, own) for _ in range(sized(1, 2))]
    for outputs in found:
        assert [o.outputs for o in outputs] == [o.outputs for o in expected]
    stats = llm.engine.stats()
    assert stats[FAILED.replace("medusa", method)] == (num_calls + 1) // 3 > 0
    assert stats[HELD.replace("medusa", method)] > sized(10, 20)
    errors = [record for record in quire_log if record.levelno == logging.ERROR]
    assert [e.getMessage().startswith(f"[speculation] {method} failed: ") for e in errors] == [True]
