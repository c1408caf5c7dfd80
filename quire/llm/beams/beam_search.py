"""Beam search: the requests of each step, and the continuations that are kept; it runs no engine.

Each step computes one token of every beam, as requests that continue from the blocks of the last
step's. So nothing is computed twice, and beams share all blocks but those that they alone have
written into.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

from msgspec import structs

from quire.core.beam_search_params import BeamSearchParams
from quire.core.engine_request import Continuation, EngineRequest
from quire.core.errors import InvalidSamplingParamsError, RequestError
from quire.core.outputs import CompletionOutput, Logprob, RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.text.tokenizers.tokenizer import Tokenizer


@contextmanager
def width_errors(width: int, param: str) -> Iterator[None]:
    """Rewrite an error about ``logprobs``, which the caller did not set, to name the width instead.

    Args:
        width: The search's width.
        param: The caller's name for the width.
    """
    try:
        yield
    except InvalidSamplingParamsError as error:
        if error.param != "logprobs":
            raise
        raise InvalidSamplingParamsError(
            f"[{param}] a beam search asks for {2 * width} log-probabilities per token, twice its "
            f"width, which must be at most --max-logprobs; got a width of {width}. Lower it, or "
            "start with a larger --max-logprobs.",
            param,
        ) from error


@dataclass(slots=True)
class BeamSearchSequence:
    """One sequence of a search.

    Attributes:
        tokens: Prompt and output.
        logprobs: The alternatives of each output token's step, with the token itself.
        cum_logprob: Sum over the output tokens.
        score: The number that sequences are ordered by.
        text: Prompt and output as text.
        finish_reason: ``stop`` at an end-of-sequence token, else ``length``.
        stop_reason: The end-of-sequence token.
    """

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float = 0.0
    score: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best sequences for one prompt, best first: ``sequences``."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class _Beam:
    """A sequence that continues from the blocks of the request ``request_id``."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cum_logprob: float = 0.0
    request_id: str | None = None


class BeamSearch:
    """The search for one prompt: ask for :attr:`requests`, run them, :meth:`advance`.

    Args:
        source: The prompt, and settings for all requests of the search.
        params: Width, length and so on.
        eos_token_ids: Ids that end a sequence.

    Attributes:
        requests: Requests of the next step, in the order in which :meth:`advance` takes their
            outputs; empty when the search has ended.
        kept: Ids of ended requests whose blocks an engine may still keep; abort them at the end.
    """

    def __init__(
        self, source: EngineRequest, params: BeamSearchParams, eos_token_ids: Container[int]
    ) -> None:
        self._source = source
        self._params = params
        self._eos_token_ids = () if params.ignore_eos else eos_token_ids
        self._beams = [_Beam(list(source.prompt_token_ids))]
        self._completed: list[BeamSearchSequence] = []
        self._num_steps = 0
        self._last_parents: set[str] = set()
        self._releases: tuple[str, ...] = ()
        self.kept: set[str] = set()
        self.requests = self._ask()

    def _ask(self) -> list[EngineRequest]:
        """Return the requests of the next step."""
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=max(2 * self._params.beam_width, self._source.params.logprobs or 0),
            ignore_eos=True,
            detokenize=False,
            speculative=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        is_last = self._num_steps == self._params.max_tokens - 1
        return [
            replace(
                self._source,
                request_id=f"{self._source.request_id}/{self._num_steps}.{index}",
                prompt_token_ids=beam.tokens,
                params=params,
                prompt=None,
                continuation=Continuation(
                    keeps_blocks=not is_last,
                    continues=beam.request_id,
                    releases=() if index else self._releases,
                ),
            )
            for index, beam in enumerate(self._beams)
        ]

    def advance(self, outputs: Sequence[RequestOutput]) -> None:
        """Choose the next beams.

        Args:
            outputs: The finished outputs of :attr:`requests`.

        Raises:
            RequestError: One of them has failed; the search cannot continue.
        """
        width, self._num_steps = self._params.beam_width, self._num_steps + 1
        candidates: list[tuple[float, int, int]] = []  # log-probability, beam, token
        found: list[dict[int, Logprob]] = []
        for index, (beam, output) in enumerate(zip(self._beams, outputs, strict=True)):
            (completion,) = output.outputs
            if completion.finish_reason != "length" or not completion.logprobs:
                raise RequestError(
                    f"[beam_search] a step must end by itself; got {completion.finish_reason}: "
                    f"{output.error or 'no further reason'}."
                )
            found.append(completion.logprobs[0])
            # Best first; a caller may ask for more of them than a search looks at.
            for token_id, one in islice(completion.logprobs[0].items(), 2 * width):
                cum_logprob = beam.cum_logprob + one.logprob
                if token_id in self._eos_token_ids:
                    self._complete(beam, token_id, completion.logprobs[0], cum_logprob)
                else:
                    candidates.append((cum_logprob, index, token_id))
        candidates.sort(key=lambda candidate: -candidate[0])  # stable: ties keep their order
        ids = [request.request_id for request in self.requests]
        chosen = candidates[:width]
        self._release({ids[index] for _, index, _ in chosen}, ids)
        self._beams = [
            _Beam(
                [*self._beams[index].tokens, token_id],
                [*self._beams[index].logprobs, found[index]],
                cum_logprob,
                ids[index],
            )
            for cum_logprob, index, token_id in chosen
        ]
        has_ended = self._num_steps == self._params.max_tokens
        self.requests = [] if has_ended else self._ask()

    def _release(self, parents: set[str], ids: Sequence[str]) -> None:
        """Let the next step free the blocks that no beam continues from any more.

        The parents of this step are done with, too: their continuations have been computed.
        """
        self._releases = tuple(sorted(self._last_parents | (set(ids) - parents)))
        self._last_parents = parents
        self.kept = parents | set(self._releases)

    def _complete(
        self, beam: _Beam, token_id: int, logprobs: dict[int, Logprob], cum_logprob: float
    ) -> None:
        score = self._params.score(cum_logprob, len(beam.tokens))
        worst = self._completed[-1].score if self._completed else 0.0
        if len(self._completed) == self._params.beam_width and score <= worst:
            return
        self._completed.append(
            BeamSearchSequence(
                [*beam.tokens, token_id],
                [*beam.logprobs, logprobs],
                cum_logprob,
                score,
                finish_reason="stop",
                stop_reason=token_id,
            )
        )
        self._completed.sort(key=lambda sequence: -sequence.score)
        del self._completed[self._params.beam_width :]

    def sequences(self) -> list[BeamSearchSequence]:
        """Return the best sequences, best first, without their text."""
        live = [
            BeamSearchSequence(
                beam.tokens,
                beam.logprobs,
                beam.cum_logprob,
                self._params.score(beam.cum_logprob, len(beam.tokens)),
                finish_reason="length",
            )
            for beam in self._beams
        ]
        found = sorted([*self._completed, *live], key=lambda sequence: -sequence.score)
        return found[: self._params.beam_width]

    def result(self, tokenizer: Tokenizer) -> BeamSearchOutput:
        """Return the best sequences with their text, prompt included."""
        sequences = self.sequences()
        for sequence in sequences:
            sequence.text = tokenizer.decode(sequence.tokens)
        return BeamSearchOutput(sequences)

    def request_output(self, tokenizer: Tokenizer, last: RequestOutput) -> RequestOutput:
        """Return the best sequences as the choices of one finished request.

        Args:
            tokenizer: The model's tokenizer.
            last: An output of the last step, for its times.
        """
        source, outputs = self._source, []
        for index, sequence in enumerate(self.sequences()):
            token_ids = sequence.tokens[len(source.prompt_token_ids) :]
            shown = token_ids[:-1] if sequence.finish_reason == "stop" else token_ids
            detokenizer = tokenizer.create_detokenizer(
                skip_special_tokens=source.params.skip_special_tokens, continues=True
            )
            outputs.append(
                CompletionOutput(
                    index,
                    detokenizer.add(shown) + detokenizer.flush(),
                    token_ids,
                    _reported(sequence, token_ids, source.params.logprobs, tokenizer),
                    cumulative_logprob=sequence.cum_logprob,
                    finish_reason=sequence.finish_reason,
                )
            )
        return replace(
            last,
            request_id=source.request_id,
            prompt=source.prompt,
            prompt_token_ids=source.prompt_token_ids,
            outputs=outputs,
            num_cached_tokens=0,
        )


def _reported(
    sequence: BeamSearchSequence,
    token_ids: Sequence[int],
    num_top: int | None,
    tokenizer: Tokenizer,
) -> list[dict[int, Logprob]] | None:
    """Return each token's own log-probability and the ``num_top`` best, or None for none."""
    if num_top is None:
        return None
    made = []
    for token_id, step in zip(token_ids, sequence.logprobs, strict=True):
        shown = {token_id: step[token_id], **dict(islice(step.items(), num_top))}
        made.append(
            {
                found: structs.replace(one, decoded_token=tokenizer.token_text(found))
                for found, one in shown.items()
            }
        )
    return made
