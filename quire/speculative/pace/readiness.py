"""Whether to be ready to propose at all: measured at each load, by turns of both, not predicted.

Readiness costs something even where no request gets a proposal: slots are looked after, requests
are asked about, drafts catch up, states are kept of every step. So a block of steps with all of
that is compared with those before and after it without, and the side that brings more leads: with
the one before alone, contexts that grow would make any second block the slower one. The other side
gets a block now and then. Before it gets the next one, the loss is paid back by a part of the time
of the steps that follow; and it rests longer each time that it promises nothing. Where the side
without readiness leads, nothing is kept for drafters either, so they know nothing of sequences that
began meanwhile: a try waits for a new one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from quire.speculative.pace.decayed_mean import DecayedMean

#: Steps of a block: at least, at most, and enough for that many seconds.
BLOCK_STEPS, LONGEST_BLOCK, BLOCK_SECONDS = 16, 64, 0.02
#: Part of the time that goes to the side that brings less.
EXPLORING = 0.005
#: Comparisons at a load that follow each other: at least, and at most until it is sure which side
#: brings more. What a comparison is worth after another one.
FIRST_PAIRS, MOST_PAIRS, DECAY = 3, 12, 0.9
#: To be ready ends where it brings less than that times as much, and begins where it surely brings
#: more than the other: what states cost that are kept is not in a comparison of blocks that both
#: keep them.
ENDS, BEGINS = 1.05, 1.07
#: Steps of the leading side between two tries of the other one, at first and at most; and for how
#: many a try waits for a new sequence.
FIRST_PAUSE, LONGEST_PAUSE, LONGEST_WAIT = 64, 4096, 256
#: A step counts as at most that many plain ones in a comparison, since drafters that make up for
#: prompts would decide it; and as at most that many where it has to be paid back.
MOST_SECONDS, MOST_DEBT = 4.0, 256.0
#: A load is the same one within these bounds.
LESS, MORE = 2 / 3, 3 / 2


@dataclass(slots=True)
class _Block:
    """Steps of one side: what they brought, in seconds of plain steps, and what they took."""

    brought: float = 0.0
    seconds: float = 0.0
    num_steps: int = 0

    @property
    def speed(self) -> float:
        return self.brought / max(self.seconds, 1e-9)


@dataclass(slots=True)
class _Load:
    """Record of both sides at a load.

    Attributes:
        leads: Whether readiness leads.
        is_ready: Whether readiness has its turn now.
        gain: Speed with readiness over the speed without it.
        num_pairs: Comparisons so far.
        is_open: Whether it is not sure yet which side brings more.
        block: Block of the present turn.
        speed: Speed of the leading side's last block; 0.0 before there is one.
        tried: Block of the other side since then, till the leading side has another one.
        debt: Seconds that the other side's turns have lost.
        pause: Steps that are left till the other side's turn, below 0 while it is due.
        next_pause: Steps of the next pause.
    """

    leads: bool = True
    is_ready: bool = True
    gain: DecayedMean = field(default_factory=lambda: DecayedMean(DECAY))
    num_pairs: int = 0
    is_open: bool = True
    block: _Block = field(default_factory=_Block)
    speed: float = 0.0
    tried: _Block | None = None
    debt: float = 0.0
    pause: int = 0
    next_pause: int = FIRST_PAUSE

    def come_back(self) -> None:
        """Resume, as the load is another one than a step before; short answers change it often.

        A try of being ready is given up: drafters do not know the sequences that decode now.
        """
        if self.is_ready and not self.leads:
            self.is_ready, self.block = False, _Block()
            self._rest()

    def begin_due(self, has_new: bool, is_known: bool) -> None:
        """Begin the other side's turn, if it is due and drafters may know something."""
        if self.is_ready != self.leads or self.speed == 0.0 or self.tried is not None:
            return
        is_due = self.is_open or (self.pause <= 0 and self.debt <= 0.0)
        has_waited = is_known and self.pause <= -LONGEST_WAIT
        if is_due and (self.leads or has_new or has_waited):
            self.is_ready, self.block = not self.leads, _Block()

    def observe(self, brought: float, seconds: float, owed: float) -> None:
        """Count a step of the side whose turn it is.

        Args:
            brought: Tokens of the step, in seconds of plain steps.
            seconds: Time of the step that is compared.
            owed: Further time, which a try has to pay back.
        """
        block, is_leading = self.block, self.is_ready == self.leads
        block.brought += brought
        block.seconds += seconds
        block.num_steps += 1
        if is_leading:
            self.debt = max(self.debt - EXPLORING * seconds, 0.0)
            if self.pause > 0 or self.debt <= 0.0:
                self.pause -= 1
        else:
            self.debt += owed
        is_long = block.seconds >= BLOCK_SECONDS and block.num_steps >= BLOCK_STEPS
        if not is_long and block.num_steps < LONGEST_BLOCK:
            return
        self.block = _Block()
        if not is_leading:
            self.tried, self.is_ready = block, self.leads
            return
        if self.tried is not None:
            self._compare(self.tried, math.sqrt(self.speed * block.speed))
        self.speed = block.speed if self.is_ready == self.leads else 0.0

    def _compare(self, tried: _Block, speed: float) -> None:
        """Compare a block of the side that does not lead with the leading side.

        Args:
            tried: Block of the side that does not lead.
            speed: The leading side's speed around that block.
        """
        self.debt += max(tried.seconds - tried.brought / speed, 0.0)
        gain = speed / tried.speed if self.leads else tried.speed / speed
        self.gain.add(gain)
        self.num_pairs += 1
        mean, led = self.gain.value, self.leads
        if self.num_pairs >= FIRST_PAIRS:
            doubt = math.sqrt(self.gain.variance)
            is_late = self.num_pairs >= MOST_PAIRS
            self.is_open = self.is_open and not is_late and abs(mean - ENDS) < doubt
            ends = mean < ENDS and not self.is_open and (is_late or mean + doubt < ENDS)
            self.leads = not ends if led else mean - doubt >= BEGINS
        promises = gain < ENDS if led else gain > BEGINS
        if self.leads != led:
            self.next_pause = FIRST_PAUSE
        elif promises:  # two shorter rests make up for one that was longer by chance
            self.next_pause = max(self.next_pause // 4, FIRST_PAUSE)
        self._rest()
        self.tried, self.is_ready = None, self.leads

    def _rest(self) -> None:
        """Let the leading side run for longer than the last time."""
        self.pause = self.next_pause
        self.next_pause = min(2 * self.pause, LONGEST_PAUSE)


class Readiness:
    """Says of each step whether an engine is ready to propose in it.

    Args:
        is_wanted: Whether readiness is measured; where lengths are set by hand, an engine is
            always ready.
    """

    def __init__(self, is_wanted: bool = True) -> None:
        self._is_wanted = is_wanted
        self._loads: dict[int, _Load] = {}
        self._load = _Load()
        self._center = 0.0

    def is_ready(self, num_running: int, has_new: bool, is_known: bool) -> bool:
        """Return whether the engine is ready to propose in the next step.

        Args:
            num_running: Sequences that run.
            has_new: Whether one of them is new.
            is_known: Whether drafters know one of the others.
        """
        if not self._is_wanted:
            return True
        if not LESS <= num_running / max(self._center, 0.5) <= MORE:
            # A load that was never seen is thought to be as the one before; it may not last. Where
            # proposals surely do not pay, they do so less for more sequences: rows cost more.
            is_sure = not (self._load.leads or self._load.is_open) and num_running > self._center
            self._center = max(num_running, 1)
            new = _Load(self._load.leads, is_open=not is_sure)
            self._load = self._loads.setdefault(num_running.bit_length(), new)
            self._load.come_back()
        self._load.begin_due(has_new, is_known)
        return self._load.is_ready

    @property
    def keeps_states(self) -> bool:
        """Whether drafters are told what the next step computes."""
        return self._load.is_ready or self._load.leads

    def observe(self, is_ready: bool, num_tokens: float, plain: float, seconds: float) -> None:
        """Count a step of nothing but decoding sequences.

        Args:
            is_ready: Whether the engine was ready to propose in it.
            num_tokens: Tokens that the step brought each sequence, on average.
            plain: Seconds that it was predicted to take without proposals.
            seconds: Time of the step.
        """
        if self._is_wanted and is_ready == self._load.is_ready:
            compared = min(seconds, MOST_SECONDS * plain)
            owed = min(seconds, MOST_DEBT * plain) - compared
            self._load.observe(num_tokens * plain, compared, owed)
