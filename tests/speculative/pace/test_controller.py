"""Lengths that the controller chooses, on a simulated engine whose best lengths are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from quire.core.sampling_params import SamplingParams
from quire.core.speculative_config import SpeculativeMethod
from quire.core.speculative_params import SpeculativeParams
from quire.core.step import SequenceResult
from quire.runner.row_seconds import MEASURED_ROWS
from quire.speculative.pace.controller import LONGEST_IDLE, Controller
from tests.sizes import sized

#: Rows, and seconds of a step of them as ``measure_rows`` gave them on two cores of a Zen 5, of the
#: shape of Llama 3.2 1B.
Q4_0 = {
    1: 0.0180, 4: 0.0180, 5: 0.0207, 6: 0.0243, 7: 0.0277, 8: 0.0322, 12: 0.0455, 13: 0.0538,
    16: 0.0644, 24: 0.0898, 32: 0.1147, 64: 0.241, 576: 2.3,
}  # fmt: skip
BFLOAT16 = {
    1: 0.0652, 8: 0.0698, 12: 0.0737, 13: 0.0848, 16: 0.0867, 24: 0.123, 32: 0.159, 64: 0.310,
    576: 2.7,
}  # fmt: skip


def between(points: dict[int, float], rows: int) -> float:
    """Seconds on lines through what was measured."""
    low = max(known for known in points if known <= rows)
    high = min((known for known in points if known >= rows), default=low)
    if low == high:
        return points[low]
    return points[low] + (points[high] - points[low]) * (rows - low) / (high - low)


#: Seconds of a step by its rows: few rows wait for memory, many for the multiplications.
MACHINES: dict[str, Callable[[int], float]] = {
    "Q4_0": lambda rows: between(Q4_0, rows),
    "bfloat16": lambda rows: between(BFLOAT16, rows),
    "memory, then compute": lambda rows: max(0.020, 0.0025 * rows) + 0.0005 * rows,
    "every row costs": lambda rows: 0.001 + 0.009 * rows,
    "tiles of four": lambda rows: 0.005 + 0.0016 * rows + 0.003 * -(-rows // 4),
}
METHOD = SpeculativeMethod(method="draft_model", model="draft", num_speculative_tokens=8)


@dataclass
class Decoding:
    request_id: str
    params: SamplingParams = field(default_factory=SamplingParams)
    num_tokens: int = 10


@dataclass
class Simulated:
    """An engine without a model: tokens are counted, time is added up."""

    seconds_of: Callable[[int], float]
    draft_seconds: float
    noise: float = 0.1
    draft_start: float = 0.0
    seconds: float = 0.0
    num_tokens: int = 0
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(7)

    def step(self, controller: Controller, live: list[Decoding], rates: dict[str, float]) -> None:
        lengths = controller.choose(live, 0)
        brought = self.compute(list(lengths), live, rates)
        for one, result in zip(live, brought, strict=True):
            controller.observe(one, result)
        controller.step_ended(len(live) + sum(lengths), self.last, self.drafted)

    def compute(
        self, lengths: list[int], live: list[Decoding], rates: dict[str, float]
    ) -> list[SequenceResult]:
        brought = []
        for one, length in zip(live, lengths, strict=True):
            held = 0
            while held < length and self.random.random() < rates[one.request_id]:
                held += 1
            brought.append(SequenceResult([1] * (held + 1), held, num_proposed=length))
            self.num_tokens += held + 1
        self.drafted = self.draft_seconds * max(lengths) + self.draft_start * any(lengths)
        steps = self.seconds_of(len(live) + sum(lengths)) + self.drafted
        self.last = steps * self.random.uniform(1 - self.noise, 1 + self.noise)
        self.seconds += self.last
        self.lengths.append(sum(lengths))
        return brought

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


def measured(machine: Callable[[int], float]) -> dict[int, float]:
    return {rows: machine(rows) for rows in MEASURED_ROWS}


def controlled(
    machine: Callable[[int], float],
    rates: list[float],
    *,
    draft_seconds: float = 0.0005,
    num_steps: int = 1500,
    start: Callable[[int], float] | None = None,
    known: bool = True,
) -> Simulated:
    live = [Decoding(str(i)) for i in range(len(rates))]
    controller = Controller((METHOD,), measured(start or machine) if known else {1: machine(1)})
    engine = Simulated(machine, draft_seconds)
    for _ in range(num_steps):
        engine.step(controller, live, {str(i): rate for i, rate in enumerate(rates)})
    return engine


def fixed(
    machine: Callable[[int], float], rates: list[float], length: int, draft_seconds: float = 0.0005
) -> Simulated:
    live = [Decoding(str(i)) for i in range(len(rates))]
    engine = Simulated(machine, draft_seconds if length else 0.0)
    for _ in range(sized(max(100, 800 // len(live)), 800)):  # as many rounds of sequences at least
        engine.compute([length] * len(live), live, {str(i): rate for i, rate in enumerate(rates)})
    return engine


@pytest.mark.parametrize("own", [0.0, 0.01])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rate", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("load", [1, 4, 16, 64])
def test_it_is_as_good_as_the_best_fixed_length(
    machine: str, rate: float, load: int, own: float
) -> None:
    """``own``: what a step takes besides, which was not measured at start."""
    shape = MACHINES[machine]

    def seconds_of(rows: int) -> float:
        return own + shape(rows)

    plain, *others = (fixed(seconds_of, [rate] * load, length).rate for length in range(9))
    found = controlled(seconds_of, [rate] * load, start=shape).rate
    assert found >= 0.95 * max(plain, *others)
    assert found >= 0.97 * plain


def test_sequences_that_hold_get_the_rows() -> None:
    """Half of them copy, half of them do not: no fixed length suits both."""
    machine, rates = MACHINES["memory, then compute"], [0.95, 0.05] * 2
    best = max(fixed(machine, rates, length).rate for length in range(9))
    assert controlled(machine, rates).rate > 1.1 * best


def test_proposals_that_never_hold_end_within_50_rounds() -> None:
    for machine in MACHINES.values():
        engine = controlled(machine, [0.0], num_steps=1000, draft_seconds=0.002)
        assert sum(length > 0 for length in engine.lengths[:100]) <= 50
        assert sum(length > 0 for length in engine.lengths[500:]) <= 0.2 * 500
        plain = fixed(machine, [0.0], 0)
        assert engine.rate >= 0.95 * plain.rate


@pytest.mark.parametrize("load", [1, 4])
@pytest.mark.parametrize("machine", MACHINES)
def test_a_hundredth_of_the_time_goes_to_trying_what_does_not_pay(machine: str, load: int) -> None:
    """Where a draft takes as long as eight steps, it is the time that bounds the tries."""
    shape = MACHINES[machine]
    live = [Decoding(str(i)) for i in range(load)]
    controller = Controller((METHOD,), measured(shape))
    engine = Simulated(shape, 8 * shape(1), noise=0.0)
    tried = total = 0.0
    for number in range(3000):
        engine.step(controller, live, dict.fromkeys((one.request_id for one in live), 0.0))
        if number >= 1000:
            total += engine.last
            tried += engine.last - shape(load) if engine.lengths[-1] else 0.0
    assert 0.0 < tried <= 0.015 * total


def test_it_falls_to_nothing_under_load_and_comes_back() -> None:
    machine = MACHINES["every row costs"]
    assert sum(controlled(machine, [0.7] * 32).lengths[-100:]) <= 0.05 * 100 * 32
    memory = MACHINES["memory, then compute"]
    live = [Decoding(str(i)) for i in range(48)]
    rates = dict.fromkeys((one.request_id for one in live), 0.8)
    controller = Controller((METHOD,), measured(memory))
    engine = Simulated(memory, 0.0005)
    for count in (1, 48, 1):
        for _ in range(300):
            engine.step(controller, live[:count], rates)
    alone, loaded, again = (engine.lengths[at : at + 100] for at in (200, 500, 800))
    assert sum(alone) >= 300 and sum(again) >= 300
    assert sum(loaded) <= 0.2 * 48 * 100


def rests(
    controller: Controller, engine: Simulated, live_of: Callable[[int], list[Decoding]]
) -> Iterator[int]:
    """Yield the steps for which no sequence is asked, after each of 300 looks at ``live_of``'s."""
    for number in range(300):
        live = live_of(number)
        engine.step(controller, live, {one.request_id: 0.0 for one in live})
        yield controller.rest()


def test_no_sequence_is_asked_for_longer_and_longer_while_most_stay() -> None:
    """One that comes for one that goes changes little; others than before are asked soon."""
    machine = MACHINES["every row costs"]
    controller, engine = Controller((METHOD,), measured(machine)), Simulated(machine, 0.001)
    staying = list(
        rests(controller, engine, lambda n: [Decoding(str(i)) for i in range(n // 3, n // 3 + 16)])
    )
    assert max(staying[:3]) < LONGEST_IDLE / 2
    assert max(staying[100:]) > LONGEST_IDLE - 4
    others = list(
        rests(controller, engine, lambda n: [Decoding(f"{n // 3} {i}") for i in range(16)])
    )
    assert max(others) < LONGEST_IDLE / 2


def test_a_text_that_changes_is_followed() -> None:
    """What was written off is tried again, and pays from then on."""
    machine = MACHINES["memory, then compute"]
    live = [Decoding("a")]
    controller = Controller((METHOD,), measured(machine))
    engine = Simulated(machine, 0.0005)
    for rate in (0.02, 0.95):
        before = engine.num_tokens, engine.seconds
        for _ in range(1000):
            engine.step(controller, live, {"a": rate})
    tokens, seconds = engine.num_tokens - before[0], engine.seconds - before[1]
    best = max(fixed(machine, [0.95], length).rate for length in range(9))
    assert tokens / seconds > 0.85 * best


def test_a_drafter_that_was_slow_once_is_not_written_off() -> None:
    """Its first rounds come with a prompt to make up for, or into a bad moment."""
    machine = MACHINES["memory, then compute"]
    controller = Controller((METHOD,), measured(machine))
    engine, live = Simulated(machine, 0.2), [Decoding("a")]
    for _ in range(10):
        engine.step(controller, live, {"a": 0.9})
    engine = Simulated(machine, 0.0005)
    for _ in range(1500):
        engine.step(controller, live, {"a": 0.9})
    best = max(fixed(machine, [0.9], length).rate for length in range(9))
    assert engine.rate > 0.9 * best


def test_a_first_draft_that_costs_more_than_the_others_keeps_none_from_being_asked_for() -> None:
    """A drafter makes up for the tokens of the round before; short proposals seem dear then."""
    machine, rates = MACHINES["bfloat16"], {"a": 0.9}

    def dear() -> Simulated:
        return Simulated(machine, draft_seconds=0.008, draft_start=0.025)

    engines = {length: dear() for length in range(1, 9)}
    for length, engine in engines.items():
        for _ in range(800):
            engine.compute([length], [Decoding("a")], rates)
    best = max(engine.rate for engine in engines.values())
    controller = Controller((METHOD,), measured(machine))
    for most in (1, 8):
        found = dear()
        asked = SpeculativeParams(num_speculative_tokens=most)
        live = [Decoding(str(most), SamplingParams(speculative=asked))]
        for _ in range(800):
            found.step(controller, live, {str(most): 0.9})
    assert found.rate >= 0.95 * best


def test_tries_tell_what_further_tokens_take() -> None:
    """Tries of one token each said nothing of the others, which seemed as dear as the first."""
    machine, rates = MACHINES["memory, then compute"], [0.9] * 4
    live = [Decoding(str(i)) for i in range(4)]
    wanted = {one.request_id: rate for one, rate in zip(live, rates, strict=True)}
    controller = Controller((METHOD,), measured(machine))

    def dear() -> Simulated:
        return Simulated(machine, draft_seconds=0.001, draft_start=0.012)

    slow = Simulated(machine, draft_seconds=0.2, draft_start=0.012)  # the first rounds: a prompt
    for engine, num_steps in ((slow, 8), (found := dear(), 3000)):
        for _ in range(num_steps):
            engine.step(controller, live, wanted)
    fixed_ones = {length: dear() for length in range(1, 9)}
    for length, engine in fixed_ones.items():
        for _ in range(400):
            engine.compute([length] * 4, live, wanted)
    plain = fixed(machine, rates, 0).rate
    best = max(engine.rate for engine in fixed_ones.values())
    assert best > 1.2 * plain
    assert found.rate >= 0.9 * best


def test_rows_that_cost_nothing_are_not_proposed_for_nothing() -> None:
    engine = controlled(lambda rows: 0.02, [0.0], num_steps=400, draft_seconds=0.0)
    assert sum(length > 0 for length in engine.lengths[100:]) <= 0.1 * 300


def test_a_request_that_begins_badly_is_not_written_off() -> None:
    """Heads and drafts know little of an answer's first words, and much of those after them."""
    machine = MACHINES["memory, then compute"]
    controller = Controller((METHOD,), measured(machine))
    engine = Simulated(machine, draft_seconds=0.004, draft_start=0.014)
    for number in range(60):
        if number == 10:
            engine.num_tokens, engine.seconds = 0, 0.0
        live, begun = [Decoding(str(number))], engine.num_tokens
        while engine.num_tokens - begun < 128:
            is_first = engine.num_tokens - begun < 5
            engine.step(controller, live, {str(number): 0.1 if is_first else 0.85})
        controller.ended(live[0])
    plain = fixed(machine, [0.0], 0).rate
    assert engine.rate >= 1.2 * plain


def test_a_machine_that_was_not_measured_is_learned() -> None:
    machine = MACHINES["memory, then compute"]
    best = max(fixed(machine, [0.8], length).rate for length in range(9))
    assert controlled(machine, [0.8], known=False).rate > 0.9 * best


def test_a_drafter_is_asked_about_sequences_only_that_it_was_told_of() -> None:
    """Steps in which it could say nothing counted as such in which proposals bring nothing."""
    method = SpeculativeMethod(method="eagle3", model="head")
    controller = Controller((method,), measured(MACHINES["every row costs"]))
    controller.began("first", SamplingParams())
    assert controller.is_ready(1, has_new=True)
    rows = 16
    for _ in range(3000):  # it never pays at this load
        ready = controller.is_ready(rows, has_new=False)
        if not controller.keeps_states:
            break
        controller.brought(ready, rows, rows, 0.02 + 0.02 * ready)
    assert not ready
    assert not controller.is_ready(1, has_new=False) and not controller.keeps_states
    controller.began("second", SamplingParams())
    assert controller.is_ready(1, has_new=True) and controller.keeps_states
    controller.ended(Decoding("second"))
    assert not controller.is_ready(1, has_new=False)


def test_a_length_set_by_hand_is_kept() -> None:
    method = SpeculativeMethod(method="ngram", num_speculative_tokens=3, adaptive=False)
    controller = Controller((method,), {1: 1.0, 4: 50.0})
    off = Decoding("off", SamplingParams(speculative=False))
    fewer = Decoding("fewer", SamplingParams(speculative={"num_speculative_tokens": 2}))
    for _ in range(20):
        assert list(controller.choose([Decoding("a"), off, fewer], 0)) == [3, 0, 2]


def test_where_nothing_is_wanted_nothing_is_kept_or_learned() -> None:
    """Steps of requests without speculation counted as such in which proposals bring nothing."""
    controller = Controller((METHOD,), measured(MACHINES["Q4_0"]))
    off = SamplingParams(speculative=False)
    controller.began("off", off)
    for _ in range(400):
        assert not controller.is_ready(1, has_new=False)
        assert not controller.keeps_states
        controller.brought(False, 1, 1, 0.02)
    controller.began("on", SamplingParams())
    assert controller.is_ready(2, has_new=True)
    assert controller.keeps_states
    controller.ended(Decoding("on"))
    assert not controller.is_ready(1, has_new=False)


def test_limits_of_length_and_load() -> None:
    method = SpeculativeMethod(
        method="ngram", num_speculative_tokens=5, adaptive=False, max_model_len=12,
        disable_by_batch_size=3,
    )  # fmt: skip
    controller = Controller((method,), {})
    near, far = Decoding("near", num_tokens=10), Decoding("far", num_tokens=30)
    assert list(controller.choose([near, far], 0)) == [2, 0]
    assert list(controller.choose([near, far, Decoding("third")], 0)) == [0, 0, 0]


def test_counters() -> None:
    controller = Controller((METHOD,), {})
    for held in (0, 3, 2, 3):
        result = SequenceResult([1] * (held + 1), held, num_proposed=3)
        controller.observe(Decoding("a"), result)
    samples = controller.samples()
    assert samples['spec_decode_num_drafts{method="draft_model"}'] == 4
    assert samples['spec_decode_num_draft_tokens{method="draft_model"}'] == 12
    assert samples['spec_decode_num_accepted_tokens{method="draft_model"}'] == 8
    per_position = [
        samples[f'spec_decode_num_accepted_tokens_per_pos{{method="draft_model",position="{at}"}}']
        for at in range(3)
    ]
    assert per_position == [3, 3, 2]


def test_the_alarm_is_raised_once_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Below the alarm's share of what was proposed lately; not for one bad request."""
    controller = Controller((METHOD,), {})
    gauge = 'spec_decode_low_acceptance{method="draft_model"}'
    rounds = [(4, held, wanted) for held, count, wanted in RATES for _ in range(count)]
    for proposed, held, wanted in rounds:
        result = SequenceResult([1] * (held + 1), held, num_proposed=proposed)
        controller.observe(Decoding("a"), result)
        if wanted is not None:
            assert controller.samples()[gauge] == wanted
    warnings = [record for record in caplog.records if "draft_model proposes" in record.message]
    assert len(warnings) == 2


#: Tokens that hold of four, for how many rounds, and the alarm meanwhile; None: it changes.
RATES = [
    (0, 40, 0.0), (0, 200, None), (0, 50, 1.0), (3, 500, None), (3, 50, 0.0), (1, 500, None),
    (1, 50, 1.0),
]  # fmt: skip
