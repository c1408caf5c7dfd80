"""What is learned of a step's cost, and how many tokens of prompts a step gets for it."""

from __future__ import annotations

import random

import pytest

from quire.core.errors import ConfigError
from quire.engine.scheduling.chunk_size import LEAST_TOKENS
from quire.engine.scheduling.prefill_policy import BURST_SECONDS, PROMPT_TOKENS, PrefillPolicy
from quire.engine.scheduling.step_cost import StepCost
from quire.settings.config import EngineConfig, SchedulerOptions
from tests.sizes import sized

#: Seconds of a step, of a decode and of a prompt's token.
MACHINES = [(0.001, 1e-4, 6e-5), (0.06, 4e-3, 3e-3), (0.05, 5e-4, 2e-3), (0.002, 2e-5, 2e-4)]


@pytest.mark.parametrize("machine", MACHINES)
def test_steps_like_the_last_ones_are_predicted(machine):
    """Whatever a step, a decode and a prompt's token cost; some steps meet a noisy neighbour."""
    own, decode, prompt = machine
    rng, cost = random.Random(1), StepCost()
    missed = []
    for number in range(600):
        decodes, tokens = rng.randrange(1, 200), rng.choice([0, 0, 16, 112, 400])
        seconds = own + decode * decodes + prompt * tokens
        if number >= 300:
            missed.append(abs(cost.seconds(decodes, tokens) / seconds - 1))
        noise = 3.0 if rng.random() < 0.03 else rng.uniform(0.97, 1.03)
        cost.observe(noise * seconds, decodes, tokens)
    assert sorted(missed)[len(missed) // 2] < 0.1


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("target", [0.3, 1.0])
def test_the_tokens_that_fit_keep_a_step_within_its_time(machine, target):
    """While the number of decodes changes, and from the first steps on."""
    own, decode, prompt = machine
    cost, decodes, times = StepCost(), 0, []
    cost.observe(own + prompt * PROMPT_TOKENS, 0, PROMPT_TOKENS)
    for number in range(200):
        tokens = min(max(cost.prompt_tokens(target, decodes), LEAST_TOKENS), 5000)
        seconds = own + decode * decodes + prompt * tokens
        if number >= 5 and LEAST_TOKENS < tokens < 5000:
            times.append(seconds)
        cost.observe(seconds, decodes, tokens)
        decodes = decodes + 3 if number % 100 < 60 else max(decodes - 5, 0)
    for seconds in times:
        assert seconds <= 1.15 * target
    if times:
        assert sum(times) / len(times) == pytest.approx(target, rel=0.1)


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
