"""Only requests that have pictures wait for pictures, and no longer than needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from quire.core.engine_request import Picture
from quire.engine.engine import ENCODING_SECONDS
from quire.engine.gates.picture_gate import PictureGate

ROWS = 6


class ScriptedPictures:
    """Encodes pictures one after another, each in as many calls as the test says.

    Attributes:
        calls: That each takes from now on; None for ever.
        seconds: That each call was given.
        made: Keys of those encoded, in order.
        room: Most that are kept.
    """

    def __init__(self) -> None:
        self.calls: int | None = 2
        self.seconds: list[float] = []
        self.made: list[str] = []
        self.ready: set[str] = set()
        self.room = 100
        self._wanted: dict[str, None] = {}
        self._done = 0

    def is_ready(self, picture: Picture) -> bool:
        return picture.key in self.ready

    def want(self, requests: Sequence[Sequence[Picture]]) -> None:
        self._wanted = {}
        for pictures in requests:
            keys = dict.fromkeys(picture.key for picture in pictures)
            if self._wanted and len(self._wanted | keys) > self.room:
                break
            self._wanted |= keys
        self.ready &= self._wanted.keys()

    def encode(self, seconds: float) -> None:
        self.seconds.append(seconds)
        missing = [key for key in self._wanted if key not in self.ready]
        if not missing or self.calls is None:
            return
        self._done += 1
        if self._done >= self.calls:
            self._done = 0
            self.made.append(missing[0])
            self.ready.add(missing[0])


@pytest.fixture
def gated(start: Callable) -> Callable:
    """Return a function that makes a run with pictures; every planned row of one must be ready."""

    def make(**settings):
        run = start(**settings)
        pictures, engine = ScriptedPictures(), run.engine
        most_tokens = engine.scheduler.options.max_num_batched_tokens
        engine._picture_gate = PictureGate(pictures, most_tokens)
        engine.scheduler.gates.append(engine._picture_gate)

        on_step = run.executor.on_step

        def check(plan) -> None:
            on_step(plan)
            for row in plan.scheduled:
                stop = row.num_computed_tokens + row.num_scheduled_tokens
                for picture in engine.scheduler.requests[row.request_id].source.pictures:
                    end = picture.start + picture.num_tokens
                    if picture.start < stop and end > row.num_computed_tokens:
                        assert pictures.is_ready(picture), f"{row.request_id}: {picture.key}"

        run.executor.on_step = check
        return run, pictures

    return make


def add(run, name: str, keys: str, max_tokens: int = 4, **options) -> None:
    """Add a request of which each character of ``keys`` is a picture, with text between them."""
    prompt, pictures = [ord(name[0]), 1], []
    for key in keys:
        pictures.append(Picture(len(prompt), ROWS, key, b"", 0, 0))
        prompt += [0] * ROWS + [2, 3]
    run.add(name, prompt, max_tokens=max_tokens, pictures=tuple(pictures), **options)


def test_those_without_pictures_pass_one_that_waits(gated):
    run, pictures = gated()
    pictures.calls = None
    add(run, "picture", "a")
    for number in range(5):
        add(run, f"text{number}", "")
    for _ in range(8):
        run.step()
    assert sorted(run.endings) == [(f"text{number}", 0) for number in range(5)]
    assert run.engine.stats()['num_requests_waiting_by_reason{reason="deferred"}'] == 1
    assert run.engine.seconds_until_work() == 0
    pictures.calls = 1
    run.finish()
    assert run.endings["picture", 0] == "length"


def test_who_decodes_gets_a_token_in_every_step(gated):
    run, pictures = gated()
    add(run, "text", "", max_tokens=40)
    run.step()
    pictures.calls = 5
    for name in ("xab", "yc", "zd"):
        add(run, name, name[1:])
    steps = 0
    while ("zd", 0) not in run.endings:
        outputs = run.step()
        steps += 1
        assert "text" in [output.request_id for output in outputs]
    assert steps > 20 and pictures.made == list("abcd")


def test_encoding_takes_as_long_as_a_step_of_those_who_decode(gated):
    run, pictures = gated(step_seconds=lambda plan: 0.25)
    add(run, "x", "a")
    run.step(), run.step()
    assert pictures.seconds == [ENCODING_SECONDS]
    add(run, "text", "", max_tokens=30)
    for _ in range(20):
        run.step()
    pictures.seconds.clear()
    add(run, "y", "b")
    run.step(), run.step()
    assert pictures.seconds == [pytest.approx(0.25, rel=0.3)]


def test_encoding_takes_no_longer_after_a_step_that_was_disturbed(gated):
    step_seconds = 0.25
    run, pictures = gated(step_seconds=lambda plan: step_seconds)
    pictures.calls = None
    add(run, "text", "", max_tokens=40)
    for _ in range(10):
        run.step()
    add(run, "y", "b")
    step_seconds = 2.5
    run.step()
    step_seconds = 0.25
    pictures.seconds.clear()
    for _ in range(3):
        run.step()
    assert len(pictures.seconds) == 3 and max(pictures.seconds) <= 0.25 + 1e-9


def test_a_long_prompt_begins_before_its_last_pictures_are_encoded(gated):
    run, pictures = gated(max_num_batched_tokens=16)
    add(run, "long", "abcdef")
    for _ in range(6):
        run.step()
    assert run.plans and "f" not in pictures.made
    run.finish()
    assert pictures.made == list("abcdef") and run.endings["long", 0] == "length"


@pytest.mark.parametrize("room", [1, 2, 3])
def test_more_pictures_than_there_is_memory_for_take_turns(gated, room):
    run, pictures = gated(max_num_batched_tokens=16)
    pictures.room = room
    for name in ("uabc", "vdef", "wabc", "xgg"):
        add(run, name, name[1:])
    run.finish()
    assert set(run.endings.values()) == {"length"}


def test_a_picture_in_the_prefix_cache_is_not_encoded_again(gated):
    run, pictures = gated(block_size=4)
    add(run, "x", "a")
    run.finish()
    add(run, "x", "a")  # its first picture's last rows are in a block that is whole
    run.endings.clear()
    run.step()
    assert run.plans[-1].scheduled[0].num_computed_tokens == 8
    run.finish()
    assert pictures.made == ["a"]


def test_abort_and_deadline_end_one_that_waits(gated):
    run, pictures = gated()
    pictures.calls = None
    add(run, "x", "a")
    add(run, "y", "b", deadline=3.0)
    run.step()
    run.abort("x")
    run.clock.advance(4)
    run.step()
    assert run.endings == {("x", 0): "abort", ("y", 0): "timeout"}
    assert not run.engine.has_unfinished_requests()
    assert run.engine.seconds_until_work() is None


def test_preempted_requests_wait_for_their_pictures_again(gated):
    run, pictures = gated(num_blocks=14, block_size=4, looks_ahead=False)
    for number in range(6):
        add(run, f"{number}", "abcdef"[number], max_tokens=30)
    run.finish()
    assert run.engine.stats()["num_preemptions"] > 0
    assert set(run.endings.values()) == {"length"}
    assert len(pictures.made) > 6


def test_the_sequences_of_a_request_share_its_pictures(gated):
    run, pictures = gated()
    add(run, "x", "ab", n=3)
    run.finish()
    assert pictures.made == ["a", "b"] and len(run.endings) == 3
