"""How many tokens of prompts a step gets, by what steps take."""

from __future__ import annotations

import random

import pytest

from quire.core.errors import ConfigError
from quire.engine.scheduling.chunk_size import LEAST_TOKENS
from quire.engine.scheduling.prefill_policy import BURST_SECONDS, PROMPT_TOKENS, PrefillPolicy
from quire.settings.config import EngineConfig, SchedulerOptions
from tests.sizes import sized


def learned(options: SchedulerOptions, decode: float, prompt: float) -> PrefillPolicy:
    """Return a policy that has seen steps of such a machine."""
    policy = PrefillPolicy(options, takes_more=True)
    rng = random.Random(2)
    for _ in range(300):
        decodes, tokens = rng.randrange(1, 64), rng.choice([0, 40, 112])
        policy.observe(decode * decodes + prompt * tokens, decodes, tokens, False)
    return policy


def test_without_settings_short_prompts_get_more_where_steps_are_short():
    """Longer ones do not: they would hold up requests that arrive while they are computed."""
    options = SchedulerOptions()
    assert PrefillPolicy(options, takes_more=True).most_prompt_tokens(8) == PROMPT_TOKENS
    fast = learned(options, 1e-4, 1e-4)
    expected = (BURST_SECONDS - 100 * 1e-4) / 1e-4
    assert fast.most_prompt_tokens(100) == pytest.approx(expected, rel=0.1)
    assert fast.most_of_one(100) == fast.limits(0.0, 100).part == PROMPT_TOKENS
    assert learned(options, 5e-3, 3e-3).most_prompt_tokens(30) == PROMPT_TOKENS
    assert learned(options, 1e-7, 1e-7).most_prompt_tokens(4) == options.max_num_batched_tokens


def test_a_number_of_tokens_is_kept_and_a_target_is_for_parts_too():
    fixed = learned(SchedulerOptions(mixed_prefill_tokens=64), 1e-4, 1e-4)
    assert fixed.most_prompt_tokens(500) == fixed.most_of_one(500) == 64
    target = learned(SchedulerOptions(target_itl_ms=50.0), 1e-4, 1e-4)
    assert target.most_prompt_tokens(100) == pytest.approx(400, rel=0.1)
    assert target.most_of_one(100) == target.most_prompt_tokens(100)
    assert target.most_prompt_tokens(600) == LEAST_TOKENS, "decodes alone take longer"


def test_settings_that_contradict_each_other_are_refused():
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="--target-itl-ms must be above 0"):
            EngineConfig.from_keywords(target_itl_ms=wrong)
    with pytest.raises(ConfigError, match="must not both be given"):
        EngineConfig.from_keywords(target_itl_ms=50, mixed_prefill_tokens=16)


#: Of a burst, and the tokens that each generates: half of both where the same is seen in less time.
BURST, BURST_TOKENS = sized((512, 32), (1024, 64))


def burst(start, counting, **settings):
    """Send short requests at once to a machine whose steps cost by their tokens."""
    run = start(
        num_blocks=1 + BURST * 6,
        executor_class=counting,
        max_num_seqs=BURST,
        enable_prefix_caching=False,
        step_seconds=lambda plan: 0.002 + 6e-5 * plan.num_scheduled_tokens,
        **settings,
    )
    for i in range(BURST):
        run.add(f"r{i:04}", [1 + i % 900] * 20, max_tokens=BURST_TOKENS)
    most, seconds = 0, []
    num_left = sized(4, 64)  # once all have begun: steps of decodes alone, all alike
    # The first ones end after 32 steps: from then on as many run as before.
    num_steps = sized(45, 10_000)
    while run.engine.has_unfinished_requests() and num_left and len(seconds) < num_steps:
        before = run.clock.now
        run.engine.step()
        seconds.append(run.clock.now - before)
        most = max(most, len(run.plans[-1].scheduled))
        num_left -= not len(run.engine.scheduler.waiting)
    return most, seconds


def test_a_thousand_short_requests_run_at_once(start, counting):
    """Or half as many; a fixed number of tokens lets a few start while as many end."""
    most, _ = burst(start, counting, mixed_prefill_tokens=PROMPT_TOKENS)
    assert most < 400 * BURST_TOKENS / 64
    most, seconds = burst(start, counting)
    assert most == BURST
    assert max(seconds) <= 1.2 * BURST_SECONDS
    for target in (30.0, 200.0):
        most, seconds = burst(start, counting, target_itl_ms=target)
        assert (most == BURST) == (target == 200.0), "as many as keep a step within the target"
        assert max(seconds) <= 1.2 * target / 1000
