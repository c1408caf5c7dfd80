"""How many tokens are proposed for whom, step by step, so that most tokens a second are expected.

Proposing d tokens for a sequence adds d rows to a step, and d drafts where the drafter computes.
What the rows take is measured (:mod:`quire.speculative.row_seconds`), and so is how often a
position holds (:mod:`quire.speculative.acceptance`). The rows of all sequences compete: the one
that is expected to bring most comes first, and there are as many as make the quotient largest of
expected tokens and expected seconds. With many sequences, or proposals that do not hold, that is
none; a small part of the time goes on being spent on trying.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.core.log import get_logger
from quire.core.metrics import Samples
from quire.core.sampling_params import SamplingParams
from quire.core.speculative_config import SpeculativeMethod
from quire.core.speculative_params import choose_speculation
from quire.core.step import SequenceResult
from quire.speculative.acceptance import MethodAcceptance, RequestAcceptance
from quire.speculative.draft_seconds import DraftSeconds
from quire.speculative.row_seconds import RowSeconds
from quire.speculative.tree_acceptance import TreeAcceptance

log = get_logger(__name__)

#: Part of the time that is spent on proposals that are not expected to pay.
EXPLORING = 0.02
#: Steps of which that part may be saved up.
SAVED_STEPS = 50
#: Steps between two tries of a sequence at first, and at most: twice as many after a failed one.
FIRST_PAUSE, LONGEST_PAUSE = 4, 64
#: Steps for which a choice holds as long as the same sequences decode.
CHOICE_STEPS = 4
#: One in that many steps without proposals is looked at: they are alike, and looking takes time.
PLAIN_STEPS = 4
#: An alarm ends that far over what raises it.
ALARM_ENDS = 0.05
#: Tokens that a proposed one must be expected to bring: where rows cost next to nothing, what is
#: measured wrong would make those pay that never hold.
LEAST_GAIN = 0.05
#: A choice must promise that much more than nothing at all, since predictions err.
LEAST_BENEFIT = 1.01


class Decoding(Protocol):
    """A sequence that decodes, as the controller sees it."""

    request_id: str
    params: SamplingParams

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        ...


@dataclass(slots=True)
class Speculating:
    """What is known of a live sequence.

    Attributes:
        method: None when it wants no proposals.
        num_tokens: Most that it may get.
        acceptance: Of its rounds.
        last_step: When it was last given some.
        pause: Steps without any after which it is tried again.
    """

    method: SpeculativeMethod | None
    num_tokens: int
    acceptance: RequestAcceptance = field(default_factory=RequestAcceptance)
    last_step: int = -1
    pause: int = FIRST_PAUSE


class Controller:
    """Chooses lengths of proposals for the sequences of an engine.

    Args:
        methods: The server's; the first is that of requests that name none.
        row_seconds: Seconds of a step by its rows, as measured at start; may be empty.
    """

    def __init__(
        self, methods: Sequence[SpeculativeMethod], row_seconds: Mapping[int, float]
    ) -> None:
        self._methods = tuple(methods)
        self._rows = RowSeconds(row_seconds)
        self._acceptance = {
            method.method: TreeAcceptance() if method.has_tree else MethodAcceptance()
            for method in methods
        }
        self._draft_seconds: dict[str, DraftSeconds] = {m.method: DraftSeconds() for m in methods}
        self._sequences: dict[str, Speculating] = {}
        self._alarms: set[str] = set()
        self._credit = 0.0  # seconds that may be spent on trying
        self._num_steps = self._next_choice = 0
        self._names: list[str] = []
        self._lengths: list[int] = []
        self._drafting: str | None = None  # the method of a step, if it has one alone
        self._is_steady = False  # all who draft in it did so in the step before
        self._longest = 0  # proposal of the step
        self._num_tried = 0

    def choose(self, decodes: Sequence[Decoding], num_other_rows: int) -> Sequence[int]:
        """Return how many tokens each sequence may get proposed in the next step.

        Args:
            decodes: The sequences that decode in it.
            num_other_rows: Further rows that it computes, of prompts.
        """
        self._num_steps += 1
        names = [one.request_id for one in decodes]
        if self._num_steps < self._next_choice and names == self._names:
            if self._num_tried:  # a try is one step long
                self._num_tried = 0
                self._note(self._lengths, decodes)
            return self._lengths
        self._names = names
        self._lengths = self._choose(decodes, num_other_rows)
        is_idle = not any(self._lengths)
        self._next_choice = self._num_steps + CHOICE_STEPS * (2 if is_idle else 1)
        lengths = self._lengths
        self._num_tried = 0
        if 0 in lengths and self._credit > 0.0:
            lengths = self._try(lengths, decodes)
        self._note(lengths, decodes)
        return lengths

    def observe(self, request: Decoding, result: SequenceResult) -> None:
        """A step has brought tokens for a sequence that decodes."""
        if result.num_proposed:
            sequence = self._sequence(request)
            assert sequence.method is not None, f"{request.request_id} wanted no proposals"
            method = self._acceptance[sequence.method.method]
            expected = method.expected(result.num_proposed)
            sequence.acceptance.observe(result, expected)
            method.observe(result)
            self._look_at_alarm(sequence.method)
            failed = result.num_accepted == 0
            sequence.pause = min(2 * sequence.pause, LONGEST_PAUSE) if failed else FIRST_PAUSE

    def step_ended(self, num_rows: int, seconds: float, draft_seconds: float) -> None:
        """A step of nothing but decoding sequences has ended.

        Args:
            num_rows: It computed, those of proposed tokens included.
            seconds: It took in all.
            draft_seconds: Of them, those of proposing.
        """
        if self._num_tried:
            plain = self._rows.predict(max(num_rows - self._num_tried, 1))
            self._credit -= max(seconds - plain, 0.0)
        most = SAVED_STEPS * EXPLORING * seconds
        self._credit = min(self._credit + EXPLORING * seconds, most)
        if self._longest or self._num_steps % PLAIN_STEPS == 0:
            self._rows.observe(num_rows, seconds - draft_seconds)
        if self._drafting is not None:
            known = self._draft_seconds[self._drafting]
            known.observe(self._longest, draft_seconds, is_steady=self._is_steady)

    def ended(self, request: Decoding) -> None:
        """A sequence is gone."""
        self._sequences.pop(request.request_id, None)

    def samples(self) -> Samples:
        """Return the counters of each method, by metric stem."""
        values: Samples = {}
        for name, counts in self._acceptance.items():
            label = f'method="{name}"'
            values[f"spec_decode_low_acceptance{{{label}}}"] = float(name in self._alarms)
            values[f"spec_decode_num_drafts{{{label}}}"] = counts.num_drafts
            values[f"spec_decode_num_draft_tokens{{{label}}}"] = counts.num_draft_tokens
            values[f"spec_decode_num_accepted_tokens{{{label}}}"] = counts.num_accepted
            for position, count in enumerate(counts.accepted_at):
                stem = "spec_decode_num_accepted_tokens_per_pos"
                values[f'{stem}{{{label},position="{position}"}}'] = count
        return values

    def _look_at_alarm(self, method: SpeculativeMethod) -> None:
        """Raise or end the alarm of a method whose proposals hold too seldom."""
        rate = self._acceptance[method.method].rate
        if rate is None or (rate < method.alarm) == (method.method in self._alarms):
            return
        if rate >= method.alarm + ALARM_ENDS:
            self._alarms.discard(method.method)
        elif rate < method.alarm:
            self._alarms.add(method.method)
            log.warning(
                "a token that %s proposes holds in %.0f%% of all cases, less than its alarm's "
                "%.0f%%; what does not pay is not proposed",
                method.method,
                100 * rate,
                100 * method.alarm,
            )

    def _sequence(self, request: Decoding) -> Speculating:
        found = self._sequences.get(request.request_id)
        if found is None:
            chosen = choose_speculation(request.params.speculative, self._methods)
            found = Speculating(None, 0)
            if chosen is not None:
                method = next(m for m in self._methods if m.method == chosen.method)
                acceptance = self._acceptance[method.method].of_request()
                found = Speculating(method, chosen.num_tokens, acceptance)
            self._sequences[request.request_id] = found
        return found

    def _choose(self, decodes: Sequence[Decoding], num_other_rows: int) -> list[int]:
        """Return the lengths that promise most tokens a second."""
        lengths = [0] * len(decodes)
        num_rows, tokens = num_other_rows + len(decodes), float(len(decodes))
        offers: list[tuple[float, int, str]] = []  # tokens expected of a row, of which sequence
        expected: dict[str, list[float]] = {}
        for i, request in enumerate(decodes):
            sequence = self._sequence(request)
            method, most = sequence.method, self._most(sequence, request, len(decodes))
            if method is None or most <= 0:
                continue
            name = method.method
            if name not in expected:
                expected[name] = self._acceptance[name].expected(method.num_speculative_tokens)
            gains = sequence.acceptance.gains(expected[name][:most])
            if method.adaptive and self._rows.is_known:
                offers += [(gain, i, name) for gain in gains if gain >= LEAST_GAIN]
            else:
                lengths[i] = most
                num_rows += most
                tokens += sum(gains)
        offers.sort(key=lambda offer: offer[0], reverse=True)
        best_count, best = 0, LEAST_BENEFIT * tokens / max(self._rows.predict(num_rows), 1e-9)
        depths: dict[int, int] = {}
        deepest: dict[str, int] = {}
        for count, (gain, i, offered) in enumerate(offers, start=1):
            depths[i] = depths.get(i, 0) + 1
            deepest[offered] = max(deepest.get(offered, 0), depths[i])
            tokens += gain
            seconds = self._rows.predict(num_rows + count)
            seconds += sum(self._draft_seconds[n].predict(d) for n, d in deepest.items())
            if tokens / seconds > best:
                best_count, best = count, tokens / seconds
        for _, i, _ in offers[:best_count]:
            lengths[i] += 1
        return lengths

    def _most(self, sequence: Speculating, request: Decoding, num_running: int) -> int:
        method = sequence.method
        if method is None:
            return 0
        most = min(sequence.num_tokens, method.tokens_at(num_running))
        if method.max_model_len is not None:
            most = min(most, method.max_model_len - request.num_tokens)
        return most

    def _try(self, lengths: list[int], decodes: Sequence[Decoding]) -> list[int]:
        """Give a token to the sequence that has gone without for longest, if there is one."""
        idle = []
        for i, request in enumerate(decodes):
            sequence = self._sequence(request)
            has_paused = self._num_steps - sequence.last_step >= sequence.pause
            if lengths[i] == 0 and has_paused and self._most(sequence, request, len(decodes)) > 0:
                idle.append((sequence.last_step, i))
        if not idle:
            return lengths
        _, tried = min(idle)
        self._num_tried = 1
        return [*lengths[:tried], 1, *lengths[tried + 1 :]]

    def _note(self, lengths: Sequence[int], decodes: Sequence[Decoding]) -> None:
        """Remember who drafts in the step; a drafter that was idle has more to compute first."""
        methods, now = set(), self._num_steps
        self._is_steady, self._longest = self._num_tried == 0, max(lengths, default=0)
        for length, request in zip(lengths, decodes, strict=True):
            if length:
                sequence = self._sequence(request)
                assert sequence.method is not None
                methods.add(sequence.method.method)
                self._is_steady &= sequence.last_step >= now - 1
                # The choice holds for some steps; nobody is asked again until then.
                sequence.last_step = now if self._num_tried else self._next_choice - 1
        self._drafting = methods.pop() if len(methods) == 1 else None
