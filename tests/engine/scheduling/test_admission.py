"""Admission looks ahead: little is computed twice, slots stay in use, no request starves."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.engine.scheduling import admission as admission_module
from quire.engine.scheduling.admission import GrowthForecast
from quire.engine.scheduling.output_lengths import UNSEEN, WINDOW, OutputLengths
from tests.sizes import sized


def flood(run, lengths, max_tokens=None, prompt=32):
    """Run requests that end after ``lengths`` tokens; return the part that was computed again."""
    ends = {f"r{i}": length for i, length in enumerate(lengths)}
    for name, length in ends.items():
        run.add(name, [hash(name) % 997] * prompt, max_tokens=max_tokens or length)
    while run.engine.has_unfinished_requests():
        for output in run.step():
            name = output.request_id
            if len(run.tokens[name, 0]) == ends[name] < (max_tokens or 0):
                run.engine.stop_sequence(name, 0)
                run.endings[name, 0] = "stop"
    assert len(run.endings) == len(lengths)
    stats = run.engine.stats()
    return stats["preemption_recomputed_tokens"] / stats["num_computed_tokens"]


@pytest.mark.parametrize("max_num_seqs", [8, 16, 32])
def test_known_lengths_are_never_computed_twice(start, counting, max_num_seqs):
    """The game day's flood: each begins with 2 blocks and needs 32 of 159, or a half of both."""
    num_blocks, length = sized((80, 224), (160, 480))
    pools = {"num_blocks": num_blocks, "executor_class": counting, "enable_prefix_caching": False}
    run = start(max_num_seqs=max_num_seqs, **pools)
    lengths = [length] * sized(16, 32)  # five fit; it is as wrong to start sixteen
    assert flood(run, lengths) == 0
    narrow = start(max_num_seqs=4, **pools)
    flood(narrow, lengths)
    assert len(run.plans) <= len(narrow.plans), "as many as fit to their ends are not held back"


@pytest.mark.parametrize("max_num_seqs", [8, 32])
def test_unknown_lengths_are_learned(start, counting, max_num_seqs):
    """Limits of 480 of which 10 to 480 tokens are used: little again, in about the same time.

    A step takes 5 ms and 0.1 ms a token: more at once is faster, more tokens are slower.
    """
    rng = random.Random(max_num_seqs)
    lengths = [min(479, int(rng.expovariate(1 / 100)) + 10) for _ in range(sized(90, 150))]
    seconds, again = [], []
    for looks_ahead in (True, False):
        run = start(
            num_blocks=160,
            executor_class=counting,
            enable_prefix_caching=False,
            max_num_seqs=max_num_seqs,
            looks_ahead=looks_ahead,
            step_seconds=lambda plan: 0.005 + 0.0001 * plan.num_scheduled_tokens,
        )
        again.append(flood(run, lengths, max_tokens=480))
        seconds.append(run.clock.now)
    assert again[0] <= 0.05 and (max_num_seqs == 8 or again[1] > 0.2)
    assert seconds[0] <= 1.1 * seconds[1]


def test_limits_by_default_hold_no_request_back(start, counting):
    """No limit is the rest of the context, which is all of this pool: 16 start, not one by one."""
    run = start(num_blocks=2049, executor_class=counting, max_model_len=32768, max_num_seqs=16)
    assert flood(run, [100] * 16, max_tokens=32000) == 0
    assert max(len(plan.scheduled) for plan in run.plans) == 16


def test_a_preemption_makes_it_careful_until_blocks_are_free(start, counting):
    run = start(num_blocks=20, executor_class=counting, enable_prefix_caching=False)
    admission = run.engine.scheduler.admission
    for _ in range(WINDOW):
        admission.lengths.observe(5, stopped=True)  # what comes now is longer
    for i in range(6):
        run.add(f"r{i}", [i] * 30, max_tokens=100)
    while not run.engine.stats()["num_preemptions"]:
        run.step()
    assert admission.caution >= 0.5
    run.finish()
    careful = admission.caution
    run.add("alone", [1], max_tokens=200)
    run.finish()
    assert admission.caution < careful / 2


def test_a_step_that_starts_many_looks_at_each_once(start, counting):
    """Each start used to estimate all running requests again; the sum must stay what it was."""
    run = start(num_blocks=1000, block_size=4, max_num_seqs=64, takes_more=False)
    scheduler = run.engine.scheduler
    admission, looked_at, sums = scheduler.admission, [], []
    one, admits = admission._one, admission.admits

    def counted(request, num_extra):
        looked_at.append(request)
        return one(request, num_extra)

    def compared(outlook, own):
        num_looked_at = len(looked_at)
        anew = admission.growth(scheduler.running)
        del looked_at[num_looked_at:]
        kept = sum(blocks for blocks, _, _ in outlook.groups.values())
        sums.append((kept, sum(blocks for _, blocks, _ in anew)))
        return admits(outlook, own)

    admission._one, admission.admits = counted, compared
    for i in range(64):  # half of them share their first blocks with others of the step
        run.add(f"r{i}", [7] * 12 + [i] if i % 2 else [i] * 10, max_tokens=20)
    run.step()
    assert len(run.plans[0].new_requests) == 64
    assert len(looked_at) == 64
    assert all(kept == pytest.approx(anew) for kept, anew in sums)
    run.finish()


@settings(
    max_examples=sized(8, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 90), st.integers(1, 3)), min_size=1),
    st.lists(st.tuples(st.integers(1, 300), st.booleans())),
    st.floats(0, 1),
)
def test_every_request_ends_whatever_was_learned(start, counting, work, seen, caution):
    run = start(num_blocks=1 + 48, block_size=4, max_num_seqs=6)
    for length, stopped in seen:
        run.engine.scheduler.admission.lengths.observe(length, stopped)
    run.engine.scheduler.admission.caution = caution
    for i, (prompt, output, n) in enumerate(work):
        run.add(f"r{i}", [i % 900 + 1] * prompt, max_tokens=output, n=n)
    run.finish()
    assert len(run.endings) == sum(n for _, _, n in work)


growths = st.tuples(
    st.integers(1, 50).map(float), st.floats(0, 40), st.integers(0, 8).map(lambda n: n / 16)
)


def peak(parts):
    """Look at the end of each sequence: those that go on hold half a block more than the line."""
    peaks = [0.0]
    for steps, _, _ in parts:
        going_on = sorted((p for p in parts if p[0] >= steps), reverse=True)
        in_use = sum(blocks + growth * steps for _, blocks, growth in going_on)
        peaks.append(in_use + sum(p[0] > steps for p in going_on) / 2)
    return max(peaks)


@given(st.lists(growths, min_size=1, max_size=12), st.lists(growths, max_size=12))
def test_the_bound_lets_in_what_the_peak_does(parts, coming):
    outlook = GrowthForecast([], lambda _: list(parts))
    for own in coming:
        known = [*parts, own]
        exact = peak(known)
        for num_blocks in (exact - 0.01, exact + 0.01):
            assert outlook.fits(own, num_blocks) == (exact <= num_blocks)
        outlook.add(1, own)
        parts = known


@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("num_blocks", [8192, 2048])
def test_a_step_that_starts_a_thousand_looks_at_all_a_few_times(
    start, counting, monkeypatch, same_length, num_blocks
):
    """Each start used to sort all running requests: half a million looks."""
    exact, num_looks = admission_module._peak, []

    def counted(groups):
        num_looks.append(len(groups))
        return exact(groups)

    monkeypatch.setattr(admission_module, "_peak", counted)
    run = start(
        num_blocks=num_blocks,
        executor_class=counting,
        max_num_seqs=1024,
        max_num_batched_tokens=32768,
        mixed_prefill_tokens=0,
        enable_prefix_caching=False,
    )
    for i in range(1024):
        length = 40 if same_length else 20 + 7 * i % 41
        run.add(f"r{i}", [1 + i % 900] * 20, max_tokens=length)
    run.step()
    assert len(run.plans[0].new_requests) > 400
    assert sum(num_looks) <= 10_000


# What is learned


def test_nothing_seen_means_up_to_the_limit():
    lengths = OutputLengths()
    assert lengths.rest(7, 30, 0.0) == 30
    assert lengths.rest(7, 32000, 0.0) == UNSEEN, "but not to the end of a long context"
    assert lengths.rest(5000, 27000, 0.5) == 5000, "what went on for long goes on for as long again"
    assert lengths.rest(0, 32000, 1.0) == 32000
    lengths.observe(9000, stopped=False)
    assert lengths.rest(0, 32000, 0.5) == 9000


def test_outputs_that_stopped_show_how_long_outputs_are():
    lengths = OutputLengths()
    for length in [10, 20, 30] * 80:
        lengths.observe(length, stopped=True)
    assert [lengths.rest(0, 1000, part) for part in (0.1, 0.5, 0.9)] == [10, 20, 30]
    assert [lengths.rest(15, 1000, part) for part in (0.1, 0.4, 0.9)] == [5, 5, 15]
    assert lengths.rest(0, 5, 0.5) == 5
    assert lengths.rest(30, 1000, 0.1) == 1000, "longer than all: up to its limit"
    assert lengths.rest(0, 1000, 1.0) == 1000


def test_outputs_that_were_cut_show_only_that_they_were_as_long():
    lengths = OutputLengths()
    for _ in range(100):
        lengths.observe(1, stopped=False)
    assert lengths.rest(0, 50, 0.5) == 50
    for _ in range(100):
        lengths.observe(20, stopped=True)
    assert lengths.rest(0, 500, 0.5) == 20
