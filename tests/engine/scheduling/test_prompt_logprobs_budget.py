"""Log-probabilities of prompts come in parts: no step has many rows of them."""

from __future__ import annotations

import pytest

from quire.engine.scheduling.prefill_policy import FIRST_PART
from quire.engine.scheduling.prompt_logprobs_budget import ROW_COST, STEP_COST

#: Rows of 20 in a step.
MOST = STEP_COST // (ROW_COST + 20)


def rows_of(plan, names):
    return sum(row.num_scheduled_tokens for row in plan.scheduled if row.request_id in names)


@pytest.mark.parametrize("lengths", [[500], [62] * 16, [150, 3, 90, 400]])
def test_all_prompt_logprobs_of_a_wave_are_in_one_step(start, lengths):
    """32 prompts of 300 tokens held up a neighbour for 9 s; now it gets a token every step."""
    run = start(num_blocks=400, max_num_seqs=32, mixed_prefill_tokens=0)
    run.add("neighbour", [1], max_tokens=60)
    run.step()
    names = {f"p{i}" for i in range(len(lengths))}
    for i, length in enumerate(lengths):
        prompt = [(i + j) % 50 for j in range(length)]
        run.add(f"p{i}", prompt, max_tokens=1, prompt_logprobs=20)
    run.add("plain", [9] * 30, max_tokens=2)
    run.finish()
    assert max(rows_of(plan, names) for plan in run.plans) <= MOST + FIRST_PART
    steps = [i for i, plan in enumerate(run.plans) if rows_of(plan, {"neighbour"})]
    assert steps == list(range(len(steps)))
    for i, length in enumerate(lengths):
        found = [o.result.prompt_logprobs for o in run.outputs if o.request_id == f"p{i}"]
        entries = [entry for part in found if part is not None for entry in part.entries]
        assert len(entries) == length - 1
    # Where only rows are few, prompts without them go on.
    assert ("plain", 0) in run.endings


def test_those_after_one_that_gets_no_rows_come_to_their_turns(start):
    """Where a long prompt had all rows of a step, the next such one stood first in the queue."""
    quick = {"step_seconds": lambda plan: 0.001 + 1e-5 * plan.num_scheduled_tokens}
    run = start(num_blocks=400, max_num_seqs=32, **quick)
    run.add("long", [1] * 3000, max_tokens=1, prompt_logprobs=20)
    run.step()
    run.step()
    for i in range(4):
        run.add(f"next{i}", [2 + i] * 300, max_tokens=1, prompt_logprobs=20)
    run.add("plain", [9] * 30, max_tokens=2)
    for _ in range(9):
        run.step()
    assert ("plain", 0) in run.endings and ("long", 0) not in run.endings
    run.finish()


def test_rows_of_many_tokens_each_are_fewer(start):
    """A row may list the whole vocabulary: then it is alone, and there is one in any case."""
    run = start(num_blocks=100)
    run.add("few", [1] * 40, max_tokens=1, prompt_logprobs=0)
    run.add("all", [2] * 6, max_tokens=1, prompt_logprobs=-1)
    run.finish()
    assert [rows_of(plan, {"few"}) for plan in run.plans][0] == 40
    assert max(rows_of(plan, {"all"}) for plan in run.plans) == 1


def test_without_waiting_requests_steps_are_filled(start):
    run = start(num_blocks=200, takes_more=False)
    run.add("long", [1] * 600, max_tokens=1, prompt_logprobs=20)
    run.finish()
    assert rows_of(run.plans[0], {"long"}) == 600
