"""Engines apart for long prompts, so that short ones never wait for them."""

from __future__ import annotations

from quire.llm.replicas.dispatcher import Assignment, Dispatcher, RequestLoad


class PromptPools:
    """Two dispatchers as one; where no engine of one pool serves, the other takes its requests.

    Args:
        short, long: Dispatchers of the engines for short prompts, and of those for long ones.
        long_tokens: Least tokens of a long prompt.
    """

    def __init__(self, short: Dispatcher, long: Dispatcher, long_tokens: int) -> None:
        self._pools = (short, long)
        self._of_engine = {engine: pool for pool in self._pools for engine in pool.loads}
        self._long_tokens = long_tokens

    def choose(self, job: RequestLoad) -> Assignment | None:
        """Assign a request to an engine, which counts from now on; return None when none serves."""
        is_long = job.num_prompt_tokens >= self._long_tokens
        own, other = self._pools[is_long], self._pools[not is_long]
        return own.choose(job) or other.choose(job)

    def assign(self, engine: int, job: RequestLoad) -> Assignment:
        """Assign a request to a certain engine."""
        return self._of_engine[engine].assign(engine, job)

    def answered(self, assignment: Assignment) -> None:
        """Take note of a request's first output: its prompt is computed."""
        self._of_engine[assignment.engine].answered(assignment)

    def ended(self, assignment: Assignment, num_output_tokens: float | None = None) -> None:
        """Take note of a request's end, and of its output length, if no limit cut it."""
        self._of_engine[assignment.engine].ended(assignment, num_output_tokens)

    def lost(self, engine: int) -> None:
        """Take note that an engine takes no requests, and that what it held is gone."""
        self._of_engine[engine].lost(engine)

    def found(self, engine: int) -> None:
        """Take note that an engine takes requests again."""
        self._of_engine[engine].found(engine)

    def forget_prefixes(self) -> None:
        """Take note that no engine holds anything that new requests could find."""
        for pool in self._pools:
            pool.forget_prefixes()
