"""The outputs of a request that a lost engine has given, and what another one's answer adds.

The same request has the same tokens on every engine: an answer that continues where the first one
ended is the one that the first engine would have given. That is checked, not assumed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from quire.core.errors import EngineDeadError
from quire.core.outputs import CompletionOutput, RequestMetrics, RequestOutput


class GivenOutputs:
    """The deltas of one request that its reader has."""

    def __init__(self) -> None:
        self._completions: dict[int, CompletionOutput] = {}
        self._times = RequestMetrics()

    def __bool__(self) -> bool:
        return bool(self._completions)

    def add(self, output: RequestOutput) -> None:
        """Take note of a delta."""
        self._times = output.metrics
        for completion in output.outputs:
            token_ids = [*completion.token_ids]
            own = replace(completion, token_ids=token_ids, logprobs=None, token_origins=None)
            if completion.index in self._completions:
                self._completions[completion.index].merge(own)
            else:
                self._completions[completion.index] = own

    async def rest(
        self, outputs: AsyncGenerator[RequestOutput, None]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield one delta, the part of an answer that was not given yet; its start times stay.

        Args:
            outputs: All deltas of another engine's answer.

        Raises:
            EngineDeadError: The other answer does not begin with what was given.
        """
        whole: RequestOutput | None = None
        async with aclosing(outputs):
            async for output in outputs:
                if whole is None:
                    whole = output
                else:
                    whole.merge(output)
        if whole is not None:
            if whole.prompt_logprobs is not None:
                whole.prompt_logprobs = []  # they came with the first delta
            completions = [self._rest(completion) for completion in whole.outputs]
            times = replace(self._times, last_token_time=whole.metrics.last_token_time)
            yield replace(whole, outputs=completions, metrics=times)

    def _rest(self, completion: CompletionOutput) -> CompletionOutput:
        given = self._completions.get(completion.index)
        if given is None:
            return completion
        start, length = len(given.token_ids), len(completion.token_ids)
        is_same = (
            completion.token_ids[:start] == given.token_ids[:length]
            and (completion.text.startswith(given.text) or given.text.startswith(completion.text))
            # A deadline may end it before it is where the other one was.
            and (length >= start or completion.finish_reason not in ("stop", "length"))
        )
        if not is_same:
            raise EngineDeadError(
                "[engine] the engine of this request was lost, and another one's answer is not its "
                "own. Ask again."
            )
        logprobs, origins = completion.logprobs, completion.token_origins
        return replace(
            completion,
            text=completion.text[len(given.text) :],
            token_ids=completion.token_ids[start:],
            logprobs=None if logprobs is None else logprobs[start:],
            token_origins=None if origins is None else origins[start:],
            num_rejected_tokens=completion.num_rejected_tokens - given.num_rejected_tokens,
        )
