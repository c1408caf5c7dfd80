"""The engine's tokens made into callers' outputs: text, stop strings, decoded log-probabilities.

It owns the text of live requests. It ends nothing itself: it reports the sequences that have ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from quire.core.engine_request import EngineRequest
from quire.core.errors import FailureKind, RequestFailure
from quire.core.metrics import Samples
from quire.core.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.core.step import TokenLogprobs
from quire.engine.engine_output import EngineOutput
from quire.llm.outputs.token_origins import token_origins
from quire.system.log import get_logger
from quire.text.stop_strings import StopStrings
from quire.text.tokenizers.detokenizer import Detokenizer
from quire.text.tokenizers.tokenizer import Tokenizer

log = get_logger(__name__)


@dataclass(slots=True)
class LiveSequence:
    """One of a request's ``n`` sequences while it grows.

    Attributes:
        output: The output so far; of deltas, the part since the last one.
        num_tokens: Tokens that were generated in all.
        finished: Whether nothing more is added.
    """

    output: CompletionOutput
    detokenizer: Detokenizer | None
    stop_strings: StopStrings | None
    metrics: RequestMetrics | None = None
    num_tokens: int = 0
    finished: bool = False

    def end(self, reason: str, stop_reason: int | str | None = None) -> None:
        """Close the sequence: nothing more is added."""
        self.output.finish_reason, self.output.stop_reason = reason, stop_reason
        self.finished = True


@dataclass(slots=True)
class LiveRequest:
    """A request that has not ended."""

    source: EngineRequest
    sequences: list[LiveSequence]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    failure: RequestFailure | None = None
    embedding: bytes | None = None

    @property
    def has_ended(self) -> bool:
        """Whether all its sequences have."""
        sequences = self.sequences
        if len(sequences) == 1:
            return sequences[0].finished
        return all(sequence.finished for sequence in sequences)


@dataclass(slots=True)
class ProcessedStep:
    """The outputs and endings of one step.

    Attributes:
        outputs: Outputs of the requests that changed, as their ``output_kind`` wants them.
        stopped: Pairs ``(request_id, index)`` of sequences that a stop string ended; the engine
            does not know yet.
        failed: Requests that ended because their text could not be made; the engine does not know
            yet.
    """

    outputs: list[RequestOutput] = field(default_factory=list)
    stopped: list[tuple[str, int]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class OutputProcessor:
    """Turns steps into :class:`RequestOutput`.

    Args:
        tokenizer: The served model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._live: dict[str, LiveRequest] = {}
        self._seconds = 0.0

    def add(self, request: EngineRequest, stop: StopStrings | None = None) -> None:
        """Expect outputs of a request.

        Args:
            request: A completed request.
            stop: The search for its stop strings, where :func:`stop_strings_of` has made it before.
        """
        params = request.params
        stop = stop or stop_strings_of(params)
        self._live[request.request_id] = LiveRequest(
            request,
            [self._sequence(index, params, stop) for index in range(params.n)],
            [None] if params.prompt_logprobs is not None else None,
        )

    def process(self, engine_outputs: Iterable[EngineOutput]) -> ProcessedStep:
        """Add the outputs of a step to the requests that they belong to."""
        start = time.perf_counter()
        step = ProcessedStep()
        changed: dict[str, LiveRequest] = {}
        for item in engine_outputs:
            # A sequence that a stop string ended may have had more tokens on the way.
            request = self._live.get(item.request_id)
            if request is None or request.sequences[item.index].finished:
                continue
            changed[item.request_id] = request
            try:
                if self._apply(request, item):
                    step.stopped.append((item.request_id, item.index))
            except Exception as error:  # of this request alone: the others go on
                log.exception("[text] request %s failed", item.request_id)
                reason = f"its text failed: {type(error).__name__}: {error}"
                _end(request, "error", RequestFailure(FailureKind.ENGINE, reason))
                step.failed.append(item.request_id)
        for request in changed.values():
            finished = request.has_ended
            if finished:
                del self._live[request.source.request_id]
            if finished or request.source.params.output_kind is not RequestOutputKind.FINAL_ONLY:
                step.outputs.append(_output(request, finished))
        self._seconds += time.perf_counter() - start
        return step

    def stats(self) -> Samples:
        """Return the time spent here, by metric stem."""
        return {'step_seconds{stage="detokenize"}': self._seconds}

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    @property
    def num_sequences(self) -> int:
        """Sequences that have not ended."""
        live = self._live.values()
        return sum(not sequence.finished for request in live for sequence in request.sequences)

    def discard(self, request_id: str) -> bool:
        """Forget a request without an ending; return whether it was live."""
        return self._live.pop(request_id, None) is not None

    def end_all(self, reason: str, failure: RequestFailure | None = None) -> list[RequestOutput]:
        """End every live request with a finish reason."""
        outputs = []
        for request in self._live.values():
            _end(request, reason, failure)
            outputs.append(_output(request, finished=True))
        self._live.clear()
        return outputs

    def end(self, request_id: str, reason: str) -> RequestOutput | None:
        """End a request with a finish reason; None when it has ended before."""
        request = self._live.pop(request_id, None)
        if request is None:
            return None
        _end(request, reason)
        return _output(request, finished=True)

    def _sequence(
        self, index: int, params: SamplingParams, stop: StopStrings | None
    ) -> LiveSequence:
        wants_logprobs = params.logprobs is not None
        output = CompletionOutput(
            index,
            logprobs=[] if wants_logprobs else None,
            cumulative_logprob=0.0 if wants_logprobs else None,
            token_origins=[] if params.token_origins else None,
        )
        if not params.detokenize:
            return LiveSequence(output, None, None)
        detokenizer = self._tokenizer.create_detokenizer(
            skip_special_tokens=params.skip_special_tokens, continues=True
        )
        return LiveSequence(output, detokenizer, None if stop is None else stop.for_sequence())

    def _apply(self, request: LiveRequest, item: EngineOutput) -> bool:
        """Add what a step produced; return whether a stop string ended it before the engine did."""
        sequence, result = request.sequences[item.index], item.result
        if sequence.output.token_origins is not None:
            sequence.output.num_rejected_tokens += result.num_proposed - result.num_accepted
        # Those after the token that completes a stop string are not the sequence's.
        for part in [item] if sequence.stop_strings is None else _split(item):
            self._update(sequence, request, part)
            if sequence.finished:
                break
        return sequence.finished and item.finish_reason is None

    def _update(self, sequence: LiveSequence, request: LiveRequest, item: EngineOutput) -> None:
        """Add tokens, of which only the last may complete a stop string."""
        params, output, result = request.source.params, sequence.output, item.result
        output.token_ids += result.token_ids
        sequence.num_tokens += len(result.token_ids)
        sequence.metrics = item.metrics
        request.num_cached_tokens = max(request.num_cached_tokens, item.num_cached_tokens)
        if result.error is not None:
            request.failure = result.error
        if result.embedding is not None:
            request.embedding = result.embedding
        if result.prompt_logprobs is not None and request.prompt_logprobs is not None:
            request.prompt_logprobs += self._decode(result.prompt_logprobs.entries, params)
        if result.logprobs is not None and output.logprobs is not None:
            output.logprobs += self._decode(result.logprobs, params)
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + sum(
                entry.logprob for entry in result.logprobs
            )
        if output.token_origins is not None:
            output.token_origins += token_origins(result, request.source.speculative_method)
        matched = self._add_text(sequence, item, params)
        if matched is not None:
            sequence.end("stop", matched)
        elif item.finish_reason is not None:
            sequence.end(item.finish_reason, item.stop_reason)

    def _add_text(
        self, sequence: LiveSequence, item: EngineOutput, params: SamplingParams
    ) -> str | None:
        """Extend the text; return the stop string that now ends it."""
        output, stop_strings = sequence.output, sequence.stop_strings
        if sequence.detokenizer is None:
            return None
        shown = item.result.token_ids
        if item.finish_reason == "stop" and not params.include_stop_str_in_output:
            shown = shown[:-1]  # the token that ended it is no part of the text
        # As in vLLM: what the first min_tokens tokens complete does not end it.
        early = max(0, params.min_tokens - sequence.num_tokens + len(item.result.token_ids))
        detokenizer = sequence.detokenizer
        if item.finish_reason is None and stop_strings is None:  # nearly always
            output.text += detokenizer.add(shown)
            return None
        texts = [(detokenizer.add(shown[:early]), False)] if early else []
        texts.append((detokenizer.add(shown[early:]), True))
        if item.finish_reason is not None:
            texts.append((detokenizer.flush(), sequence.num_tokens > params.min_tokens))
        if stop_strings is None:
            output.text += "".join(text for text, _ in texts)
            return None
        for text, may_end in texts:
            output.text += stop_strings.add(text, may_end)
        if stop_strings.matched is None and item.finish_reason is not None:
            output.text += stop_strings.flush()
        return stop_strings.matched

    def _decode(
        self, entries: Iterable[TokenLogprobs], params: SamplingParams
    ) -> list[dict[int, Logprob]]:
        found = []
        for entry in entries:
            ranked = [(entry.token_id, entry.logprob, entry.rank)]
            ranked += [(*pair, rank) for rank, pair in enumerate(entry.top, start=1)]
            ranked += entry.named
            texts = {
                token_id: self._tokenizer.token_text(token_id) if params.detokenize else None
                for token_id, _, _ in ranked
            }
            found.append({i: Logprob(logprob, rank, texts[i]) for i, logprob, rank in ranked})
        return found


def stop_strings_of(params: SamplingParams) -> StopStrings | None:
    """Return the search that a request's sequences have a copy of each; any thread may ask."""
    if not params.stop or not params.detokenize:
        return None
    return StopStrings(params.stop, params.include_stop_str_in_output)


def _split(item: EngineOutput) -> list[EngineOutput]:
    """Return one output per token, the ending with the last."""
    count = len(item.result.token_ids)
    if count < 2:
        return [item]
    parts = [
        replace(item, result=item.result.part(i, i + 1), finish_reason=None) for i in range(count)
    ]
    parts[-1].finish_reason = item.finish_reason
    return parts


def _end(request: LiveRequest, reason: str, failure: RequestFailure | None = None) -> None:
    request.failure = failure
    for sequence in request.sequences:
        if not sequence.finished:
            sequence.end(reason)


def _output(request: LiveRequest, finished: bool) -> RequestOutput:
    """Return what callers see of a request: theirs to keep."""
    prompt_logprobs = request.prompt_logprobs
    if request.source.params.output_kind is RequestOutputKind.DELTA:
        outputs = [_hand_over(s) for s in request.sequences if _has_grown(s.output)]
        request.prompt_logprobs = None if prompt_logprobs is None else []
    else:
        outputs = [_copy(sequence.output) for sequence in request.sequences]
        prompt_logprobs = None if prompt_logprobs is None else list(prompt_logprobs)
    return RequestOutput(
        request_id=request.source.request_id,
        prompt=request.source.prompt,
        prompt_token_ids=request.source.prompt_token_ids,
        prompt_logprobs=prompt_logprobs,
        outputs=outputs,
        finished=finished,
        num_cached_tokens=request.num_cached_tokens,
        metrics=_metrics(request.sequences),
        failure=request.failure,
        embedding=request.embedding,
    )


def _has_grown(output: CompletionOutput) -> bool:
    return bool(output.token_ids or output.text) or output.finish_reason is not None


def _hand_over(sequence: LiveSequence) -> CompletionOutput:
    """Return what is new of a sequence and begin the next delta."""
    output = sequence.output
    sequence.output = CompletionOutput(
        output.index,
        logprobs=None if output.logprobs is None else [],
        cumulative_logprob=output.cumulative_logprob,
        token_origins=None if output.token_origins is None else [],
    )
    return output


def _copy(output: CompletionOutput) -> CompletionOutput:
    logprobs = None if output.logprobs is None else list(output.logprobs)
    origins = None if output.token_origins is None else list(output.token_origins)
    ids = list(output.token_ids)
    return replace(output, token_ids=ids, logprobs=logprobs, token_origins=origins)


def _metrics(sequences: list[LiveSequence]) -> RequestMetrics:
    """Join the times of a request's sequences: first events of any, last event of all."""
    parts = [sequence.metrics for sequence in sequences if sequence.metrics is not None]
    if not parts:
        return RequestMetrics()
    first = parts[0]
    if len(parts) == 1:
        return first.copy()
    return RequestMetrics(
        arrival_time=first.arrival_time,
        first_scheduled_time=min(part.first_scheduled_time for part in parts),
        first_token_time=min(part.first_token_time for part in parts),
        last_token_time=max(part.last_token_time for part in parts),
        num_preemptions=sum(part.num_preemptions for part in parts),
    )
