"""Lengths of proposals by sequence, chosen step by step for the most expected tokens a second.

Proposing d tokens for a sequence adds d rows to a step, and d drafts where the drafter computes.
The seconds of rows are learned (:class:`StepTimes`), and so is how often a position holds
(:mod:`quire.speculative.pace.acceptance`). The rows of all sequences compete: the one that is
expected to bring most is taken first, and as many are taken as make the quotient of expected tokens
and expected seconds largest. With many sequences, or proposals that do not hold, that is none; a
small part of the time is still spent on trying.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.core.metrics import Samples
from quire.core.sampling_params import SamplingParams
from quire.core.speculative_config import SpeculativeMethod
from quire.core.speculative_params import choose_speculation
from quire.core.step import SequenceResult
from quire.planner.step_times import StepTimes
from quire.speculative.pace.acceptance import MethodAcceptance, RequestAcceptance
from quire.speculative.pace.draft_seconds import DraftSeconds
from quire.speculative.pace.lookup_hit_rate import LookupHitRate
from quire.speculative.pace.proposal_overhead import ProposalOverhead
from quire.speculative.pace.readiness import Readiness
from quire.speculative.pace.tree_acceptance import TreeAcceptance
from quire.system.log import get_logger

log = get_logger(__name__)

#: Part of the time that is spent on proposals that are not expected to pay.
EXPLORING = 0.01
#: Steps of which that part may be saved up.
SAVED_STEPS = 100
#: Steps that drafts may take in a try.
LONGEST_TRY = 8
#: Steps between two tries of a sequence at first, and at most: twice as many after a failed one.
FIRST_PAUSE, LONGEST_PAUSE = 4, 64
#: Steps for which a choice holds as long as the same sequences decode; for a choice of no sequence
#: at first, and at most: twice as many each time.
CHOICE_STEPS, FIRST_IDLE, LONGEST_IDLE = 4, 8, 32
#: Part of the sequences that must stay the same for a choice of none to hold longer and longer.
ALIKE = 0.8
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
    """A live sequence's method and the record of its rounds.

    Attributes:
        method: The method that proposes for it; None when it wants no proposals.
        num_tokens: Most tokens that it may get proposed in a step.
        acceptance: Acceptance of its rounds.
        found: Rate of lookups that find something; None where the method always proposes.
        last_step: Number of the last step in which it was given tokens.
        pause: Steps without proposals after which it is tried again.
    """

    method: SpeculativeMethod | None
    num_tokens: int
    acceptance: RequestAcceptance = field(default_factory=RequestAcceptance)
    found: LookupHitRate | None = None
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
        self._rows = StepTimes(row_seconds)
        self._acceptance = {
            method.method: TreeAcceptance() if method.has_tree else MethodAcceptance()
            for method in methods
        }
        # A drafter gives nothing while it makes up for a prompt, which says nothing of the text.
        self._found: dict[str, LookupHitRate] = {
            m.method: LookupHitRate() for m in methods if m.looks_up
        }
        self._asking = ProposalOverhead()
        self._plain_rows, self._plain_seconds = 0, 0.0  # predicted last, of steps not asked about
        self._readiness = Readiness(all(method.adaptive for method in methods))
        self._draft_seconds: dict[str, DraftSeconds] = {m.method: DraftSeconds() for m in methods}
        self._wanting: set[str] = set()  # live sequences that want proposals
        # Of them: those that are new in a plan, those whose drafter must be told of every step, and
        # those that can get proposals.
        self._new: set[str] = set()
        self._followed: set[str] = set()
        self._known: set[str] = set()
        self._sequences: dict[str, Speculating] = {}
        self._alarms: set[str] = set()
        self._credit = 0.0  # seconds that may be spent on trying
        self._num_steps = self._next_choice = 0
        self._names: list[str] = []
        self._lengths: list[int] = []
        self._drafting: str | None = None  # the method of a step, if it has one alone
        self._num_drafting = 0
        self._is_steady = False  # all that draft in it did so in the step before
        self._longest = 0  # proposal of the step
        self._num_tried = self._num_tries = 0  # in the step, and in all
        self._is_choice = False  # made for the step, which took time
        self._num_idle = FIRST_IDLE
        self._is_idle = False  # no sequence was chosen last
        self._num_earning = 0  # steps since credit was given last

    def began(self, request_id: str, params: SamplingParams) -> None:
        """Note a sequence that is in a plan for the first time, or again."""
        chosen = self._chosen(params)
        if chosen is None:
            return
        self._wanting.add(request_id)
        self._new.add(request_id)
        if chosen[0].follows:
            self._followed.add(request_id)

    def is_ready(self, num_running: int, has_new: bool) -> bool:
        """Return whether tokens may be proposed in the next step; see :class:`Readiness`.

        Where no sequence wants any, or can get some, they may not, and nothing is learned of the
        load.
        """
        if not self._wanting:
            return False
        is_ready = self._readiness.is_ready(num_running, has_new, bool(self._known))
        if self._new:
            self._known |= self._new
            self._new.clear()
        if self._known and not self._readiness.keeps_states:
            self._known -= self._followed
        return is_ready and bool(self._known)

    @property
    def keeps_states(self) -> bool:
        """Whether what that step computes is kept for later proposals."""
        return bool(self._known) and self._readiness.keeps_states

    def brought(self, is_ready: bool, num_decodes: int, num_tokens: int, seconds: float) -> None:
        """Learn from a step of nothing but decoding sequences, asked about or not."""
        if num_decodes != self._plain_rows:
            self._plain_rows, self._plain_seconds = num_decodes, self._rows.seconds(num_decodes)
        if plain := self._plain_seconds:
            self._readiness.observe(is_ready, num_tokens / num_decodes, plain, seconds)

    def choose(self, decodes: Sequence[Decoding], num_other_rows: int) -> Sequence[int]:
        """Return how many tokens each sequence may get proposed in the next step.

        Args:
            decodes: The sequences that decode in it.
            num_other_rows: Further rows that it computes, of prompts.
        """
        self._num_steps += 1
        self._num_earning += 1
        names = [one.request_id for one in decodes]
        same = names == self._names
        if same and self._num_steps < self._next_choice:
            if self._num_tried:  # a try is one step long
                self._num_tried = 0
                self._note(self._lengths, decodes)
            self._is_choice = False
            return self._lengths
        are_alike = _are_alike(names, self._names)
        self._names, self._is_choice = names, True
        self._lengths = self._choose(decodes, num_other_rows)
        is_idle = not any(self._lengths)
        goes_on = self._is_idle and are_alike
        self._is_idle = is_idle
        is_plain = is_idle and self._asking.wants_plain
        if is_plain:
            num_steps = 1
        elif is_idle and goes_on:
            num_steps = self._num_idle = min(2 * self._num_idle, LONGEST_IDLE)
        else:
            self._num_idle = FIRST_IDLE
            num_steps = FIRST_IDLE if is_idle else CHOICE_STEPS
        self._next_choice = self._num_steps + num_steps
        lengths = self._lengths
        self._num_tried = 0
        if self._credit > 0.0 and not is_plain:
            lengths = self._try(lengths, decodes)
        self._note(lengths, decodes)
        return lengths

    def rest(self) -> int:
        """Return the steps for which no sequence need be asked; the one after them is looked at."""
        num_steps = 0
        if not self._longest:
            num_steps = max(self._next_choice - self._num_steps - 2, 0)
            self._num_steps += num_steps
            self._num_earning += num_steps
        return num_steps

    def observe(self, request: Decoding, result: SequenceResult) -> None:
        """Learn from the tokens that a step brought a sequence that decodes."""
        sequence = self._sequence(request)
        if sequence.found is not None and sequence.method is not None:
            part = float(result.num_proposed > 0)
            sequence.found.observe(part)
            self._found[sequence.method.method].observe(part)
        if result.num_proposed:
            assert sequence.method is not None, f"{request.request_id} wanted no proposals"
            method = self._acceptance[sequence.method.method]
            expected = method.expected(result.num_proposed)
            sequence.acceptance.observe(result, expected)
            method.observe(result)
            self._look_at_alarm(sequence.method)
            failed = result.num_accepted == 0
            sequence.pause = min(2 * sequence.pause, LONGEST_PAUSE) if failed else FIRST_PAUSE

    def step_ended(self, num_rows: int, seconds: float, draft_seconds: float) -> None:
        """Learn from a step of nothing but decoding sequences.

        Args:
            num_rows: Rows that it computed, those of proposed tokens included.
            seconds: Time of the step in all.
            draft_seconds: Part of ``seconds`` that proposing took.
        """
        asked = self._longest > 0
        self._plain_rows = 0
        if self._num_tried:
            self._credit -= max(seconds - self._seconds_without_try(), 0.0)
        most = SAVED_STEPS * EXPLORING * seconds
        self._credit = min(self._credit + self._num_earning * EXPLORING * seconds, most)
        self._num_earning = 0
        if asked or not self._is_choice or self._asking.wants_plain:
            own = seconds - draft_seconds
            if self._rows.is_known:
                self._asking.observe(own, self._rows.seconds(num_rows), asked=asked)
            self._rows.observe(own - asked * self._asking.seconds, num_rows)
        if self._drafting is not None and num_rows > len(self._names):  # it had something to say
            known = self._draft_seconds[self._drafting]
            known.observe(
                self._num_drafting, self._longest, draft_seconds, is_steady=self._is_steady
            )

    def ended(self, request: Decoding) -> None:
        """Forget a sequence that has ended."""
        self._wanting.discard(request.request_id)
        self._known.discard(request.request_id)
        self._followed.discard(request.request_id)
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

    def _chosen(self, params: SamplingParams) -> tuple[SpeculativeMethod, int] | None:
        """Return what proposes for a request, and how much at most; None when it wants nothing."""
        chosen = choose_speculation(params.speculative, self._methods)
        if chosen is None:
            return None
        method = next(m for m in self._methods if m.method == chosen.method)
        return method, chosen.num_tokens

    def _sequence(self, request: Decoding) -> Speculating:
        found = self._sequences.get(request.request_id)
        if found is None:
            chosen = self._chosen(request.params)
            found = Speculating(None, 0)
            if chosen is not None:
                method, most = chosen
                acceptance = self._acceptance[method.method].of_request()
                known = self._found.get(method.method)
                rate = None if known is None else LookupHitRate(known)
                found = Speculating(method, most, acceptance, rate)
            self._sequences[request.request_id] = found
        return found

    def _choose(self, decodes: Sequence[Decoding], num_other_rows: int) -> list[int]:
        """Return the lengths that promise most tokens a second."""
        lengths = [0] * len(decodes)
        num_rows, tokens = num_other_rows + len(decodes), float(len(decodes))
        # Tokens expected of a row that is found, how often it is, and of which sequence it is.
        offers: list[tuple[float, float, int, str]] = []
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
                rate = 1.0 if sequence.found is None else sequence.found.value
                offers += [(gain, rate, i, name) for gain in gains if gain >= LEAST_GAIN]
            else:
                lengths[i] = most
                num_rows += most
                tokens += sum(gains)
        is_asking = any(lengths)
        if not is_asking and num_other_rows == 0 and self._asking.wants_plain:
            return lengths
        offers.sort(key=lambda offer: offer[0], reverse=True)
        asking = self._asking.seconds
        before = self._rows.seconds(num_rows) + is_asking * asking
        best_count, best, rows = 0, LEAST_BENEFIT * tokens / max(before, 1e-9), float(num_rows)
        depths = [0] * len(decodes)
        # Of each method: sequences that draft, and the longest proposal.
        drafts = dict.fromkeys(expected, (0, 0))
        predict, drafting = self._rows.seconds, asking
        for count, (gain, rate, i, offered) in enumerate(offers, start=1):
            depths[i] += 1
            num_drafting, deepest = drafts[offered]
            is_first, is_deeper = depths[i] == 1, depths[i] > deepest
            if is_first or is_deeper:
                drafts[offered] = (num_drafting + is_first, max(deepest, depths[i]))
                drafting = asking + sum(
                    self._draft_seconds[name].predict(*sizes) for name, sizes in drafts.items()
                )
            tokens += rate * gain
            rows += rate
            promised = tokens / (predict(rows) + drafting)
            if promised > best:
                best_count, best = count, promised
        for _, _, i, _ in offers[:best_count]:
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
        """Give more to one sequence: that without for longest, else that with the shortest.

        Without trying, nothing is learned of longer proposals: neither how many of their tokens
        hold nor the seconds that they take.
        """
        less = []
        for i, (length, request) in enumerate(zip(lengths, decodes, strict=True)):
            sequence = self._sequence(request)
            has_paused = self._num_steps - sequence.last_step >= sequence.pause
            if (length or has_paused) and length < self._most(sequence, request, len(decodes)):
                less.append((length, sequence.last_step, i))
        if not less:
            return lengths
        length, _, tried = min(less)
        count = self._try_length(length, decodes[tried], len(decodes))
        if count == length:
            return lengths
        self._num_tried = 1
        return [*lengths[:tried], count, *lengths[tried + 1 :]]

    def _try_length(self, length: int, request: Decoding, num_running: int) -> int:
        """Return how many tokens a sequence is given that has ``length``.

        Twice as many; of one without, one and the most in turn: only both tell what a first token
        takes and what others do. Never what may take long.
        """
        sequence = self._sequence(request)
        assert sequence.method is not None
        own = self._draft_seconds[sequence.method.method]
        most = self._most(sequence, request, num_running)
        longest = LONGEST_TRY * self._rows.seconds(num_running)
        if length:
            more = min(2 * length, most)
            num_drafting = _num_drafting(self._lengths)
            return more if 0.0 < own.seen(num_drafting, more) <= longest else length
        self._num_tries += 1
        return most if own.seen(1, most) <= longest and self._num_tries % 2 == 0 else 1

    def _seconds_without_try(self) -> float:
        """Return what is expected of a step with the lengths that were chosen."""
        longest = max(self._lengths)
        seconds = self._rows.seconds(len(self._names) + sum(self._lengths))
        if not longest:
            return seconds + self._asking.plain_missed
        num_drafting = _num_drafting(self._lengths)
        drafts = (own.predict(num_drafting, longest) for own in self._draft_seconds.values())
        return seconds + self._asking.seconds + max(drafts)

    def _note(self, lengths: Sequence[int], decodes: Sequence[Decoding]) -> None:
        """Note which sequences draft in the step; an idle drafter has more to compute first."""
        methods, now = set(), self._num_steps
        self._is_steady, self._longest = True, max(lengths, default=0)
        self._num_drafting = _num_drafting(lengths)
        for length, request in zip(lengths, decodes, strict=True):
            if length:
                sequence = self._sequence(request)
                assert sequence.method is not None
                methods.add(sequence.method.method)
                self._is_steady &= sequence.last_step >= now - 1
                # The choice holds for some steps; no sequence is asked again until then.
                sequence.last_step = now if self._num_tried else self._next_choice - 1
        self._drafting = methods.pop() if len(methods) == 1 else None


def _num_drafting(lengths: Sequence[int]) -> int:
    """Return how many sequences get tokens proposed."""
    return len(lengths) - lengths.count(0)


def _are_alike(names: Sequence[str], before: Sequence[str]) -> bool:
    """Return whether most of the sequences that decode are those that did before."""
    if names == before:
        return True
    return len(set(names) & set(before)) >= ALIKE * max(len(names), len(before))
