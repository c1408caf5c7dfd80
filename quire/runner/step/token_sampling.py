"""Draws of a step's tokens from its logits; proposed tokens are accepted while they agree.

Each token of an answer is the target's own draw, a function of its logits, settings, seed and
position: proposals only decide the number of tokens in one step. Requests that ask for acceptance
by rejection are the exception. L rows of logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.sampling_params import SamplingParams
from quire.core.step import SequenceResult, StepOutput
from quire.kernels.backend import Array
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.batch.tree_batch import tree_paths
from quire.layers.sampler import Sampler
from quire.runner.step.sampling_state import SamplingState
from quire.speculative.rejection import Rejection

#: Rows of the vocabulary's width that exist at once besides the step's own logits.
LOGITS_CHUNK_ROWS = 32


@dataclass(slots=True)
class TokenDraw:
    """The tokens to be drawn for one sequence.

    Attributes:
        request_id: Id of the request.
        row: Row of the token table.
        first: First row of logits, after the last known token.
        params: Settings of the sequence.
        num_proposed: Tokens in the table after the known ones; a row of logits follows each.
        parents: Parent of each proposed token of a tree, as in
            :func:`~quire.kernels.batch.tree_batch.tree_paths`. None for a chain.
        rejection: Rule of acceptance by rejection; None where proposals must be the target's draws.
    """

    request_id: str
    row: int
    first: int
    params: SamplingParams
    num_proposed: int = 0
    parents: Sequence[int] | None = None
    rejection: Rejection | None = None

    def num_ahead(self) -> IntArray:
        """Return the number of proposed tokens before each draw, (num_proposed + 1,) int32."""
        if self.parents is None:
            return np.arange(self.num_proposed + 1, dtype=np.int32)
        return np.array([0, *map(len, tree_paths(self.parents))], np.int32)


class TokenSampling:
    """Draws for the rows of a token table."""

    def __init__(self, table: TokenTable, sampling: SamplingState, sampler: Sampler) -> None:
        self._table = table
        self._sampling = sampling
        self._sampler = sampler

    def run(
        self, draws: Sequence[TokenDraw], logits: Array, output: StepOutput, num_requests: int
    ) -> Mapping[int, Sequence[int]]:
        """Append the accepted and drawn tokens to the table and fill in the results.

        Args:
            draws: Draws of the step, at least one.
            logits: (L, V), overwritten.
            output: Output of the step, maybe with results of prompts.
            num_requests: Number of requests in the step.

        Returns:
            Indices of the accepted tokens, in order, by row of the table with a tree.
        """
        none_proposed = not any(draw.num_proposed for draw in draws)
        rows = np.array([draw.row for draw in draws], np.int32)
        at = np.array([draw.first for draw in draws], np.int32)
        lengths = self._table.num_tokens[rows]
        if none_proposed:
            drawn = self._draw(draws, rows, at, lengths, logits)
            self._table.append_tokens(rows, drawn)
        else:
            counts = np.array([draw.num_proposed + 1 for draw in draws], np.int32)
            within = np.arange(counts.sum(), dtype=np.int32)
            within -= np.repeat(np.cumsum(counts, dtype=np.int32) - counts, counts)
            rows, at, lengths = (np.repeat(each, counts) for each in (rows, at, lengths))
            lengths += np.concatenate([draw.num_ahead() for draw in draws])
            drawn = self._draw(draws, rows, at + within, lengths, logits)
        tokens = drawn.tolist()
        with_logprobs: list[tuple[TokenDraw, SequenceResult, Sequence[int]]] = []
        paths: dict[int, Sequence[int]] = {}
        end = 0
        for draw in draws:
            start, end = end, end + draw.num_proposed + 1
            own = tokens[start:end]
            path: Sequence[int] = ()
            if none_proposed:
                result = SequenceResult(own)
            else:
                path = self._accepted(draw, own, logits)
                result = self._keep(draw, own, path)
                if draw.parents is not None:
                    paths[draw.row] = path
            if own[0] < 0:
                output.result(draw.request_id).error = self._sampling.failure(draw.row)
                continue
            if draw.request_id in output.results:  # its prompt's log-probabilities
                result.prompt_logprobs = output.results[draw.request_id].prompt_logprobs
            output.results[draw.request_id] = result
            if draw.params.logprobs is not None:
                with_logprobs.append((draw, result, path))
        if with_logprobs:
            self._read_logprobs(with_logprobs, logits)
        self._follow(draws, output, num_requests)
        return paths

    def _draw(
        self,
        draws: Sequence[TokenDraw],
        rows: IntArray,
        at: IntArray,
        lengths: IntArray,
        logits: Array,
    ) -> IntArray:
        """Draw for ``rows`` of the table, after ``lengths`` tokens, from rows ``at`` of logits."""
        # Drawing overwrites the logits; rows that are needed again are copied, some at a time.
        in_place = len(at) == len(logits) and not any(map(_reads_logits, draws))
        if in_place:
            return self._sampler.draw(logits, self._sampling.batch(rows, lengths))
        parts = []
        for start in range(0, len(at), LOGITS_CHUNK_ROWS):
            part = slice(start, start + LOGITS_CHUNK_ROWS)
            own = self._sampler.select(logits, at[part])
            parts.append(self._sampler.draw(own, self._sampling.batch(rows[part], lengths[part])))
        drawn: IntArray = np.concatenate(parts)
        return drawn

    def _accepted(self, draw: TokenDraw, drawn: list[int], logits: Array) -> Sequence[int]:
        """Return the accepted proposals; the draw that follows them is put into ``drawn``."""
        if draw.parents is not None:
            return self._longest_path(draw, draw.parents, drawn)
        return range(self._num_accepted(draw, drawn, logits))

    def _longest_path(self, draw: TokenDraw, parents: Sequence[int], drawn: list[int]) -> list[int]:
        """Return the path of a tree whose tokens are the target's own draws."""
        start = int(self._table.num_tokens[draw.row])
        proposed = self._table.token_ids[draw.row, start : start + draw.num_proposed].tolist()
        path: list[int] = []
        last = -1
        for node, (parent, token) in enumerate(zip(parents, proposed, strict=True)):
            if parent == last and drawn[last + 1] == token:
                path.append(node)
                last = node
        if path and drawn[last + 1] < 0:
            # No token can be drawn here: the step that draws here alone gives the reason.
            path.pop()
            drawn[path[-1] + 1 if path else 0] = proposed[last]
        return path

    def _num_accepted(self, draw: TokenDraw, drawn: list[int], logits: Array) -> int:
        """Return the number of accepted proposals of a chain, as :meth:`_accepted` does."""
        start, count = int(self._table.num_tokens[draw.row]), draw.num_proposed
        proposed = self._table.token_ids[draw.row, start : start + count].tolist()
        possible = next((i for i, token in enumerate(drawn) if token < 0), len(drawn))
        if draw.rejection is not None and possible > 0:
            last = min(count, possible)
            rows = np.full(last, draw.row, np.int32)
            own = self._sampler.select(logits, draw.first + np.arange(last, dtype=np.int32))
            lengths = start + np.arange(last, dtype=np.int32)
            batch = self._sampling.batch(rows, lengths)
            target = self._sampler.probabilities(own, batch)
            num_accepted, token = draw.rejection.verify(target, proposed[:last], batch.position)
            if token is not None:
                drawn[num_accepted] = token
        else:
            num_accepted = 0
            while num_accepted < count and drawn[num_accepted] == proposed[num_accepted]:
                num_accepted += 1
        if num_accepted == possible and num_accepted > 0:
            # No token can be drawn here: the step that draws here alone gives the reason.
            num_accepted -= 1
            drawn[num_accepted] = proposed[num_accepted]
        return num_accepted

    def _keep(self, draw: TokenDraw, drawn: list[int], path: Sequence[int]) -> SequenceResult:
        """Append the accepted proposals and the draw after them; return the result."""
        table, row = self._table, draw.row
        start, num_accepted = int(table.num_tokens[row]), len(path)
        proposed = table.token_ids[row, start : start + draw.num_proposed].tolist()
        kept = [*(proposed[node] for node in path), drawn[path[-1] + 1 if path else 0]]
        table.token_ids[row, start : start + num_accepted + 1] = kept
        table.num_tokens[row] = start + num_accepted + 1
        result = SequenceResult(kept, num_accepted=num_accepted, num_proposed=draw.num_proposed)
        if draw.parents is not None:
            result.accepted_nodes = tuple(path)
        return result

    def _read_logprobs(
        self, with_logprobs: list[tuple[TokenDraw, SequenceResult, Sequence[int]]], logits: Array
    ) -> None:
        """Fill in the log-probabilities of the tokens that were kept."""
        at: list[int] = []
        tokens: list[int] = []
        num_top: list[int] = []
        for draw, result, path in with_logprobs:
            named = draw.params.logprob_token_ids
            rows = [draw.first, *(draw.first + 1 + node for node in path)]
            for row, token_id in zip(rows, result.token_ids, strict=True):
                at += [row] * (1 + len(named))
                tokens += [token_id, *named]
                num_top += [draw.params.logprobs or 0, *[0] * len(named)]
        entries = []
        for start in range(0, len(at), LOGITS_CHUNK_ROWS):
            part = slice(start, start + LOGITS_CHUNK_ROWS)
            raw = self._sampler.select(logits, np.array(at[part], np.int32))
            chosen = np.array(tokens[part], np.int32)
            entries += self._sampler.logprobs(raw, chosen, num_top[part])
        found = iter(entries)
        for draw, result, _ in with_logprobs:
            result.logprobs = []
            for _ in result.token_ids:
                entry = next(found)
                for _ in draw.params.logprob_token_ids:
                    other = next(found)
                    entry.named.append((other.token_id, other.logprob, other.rank))
                result.logprobs.append(entry)

    def _follow(self, draws: Sequence[TokenDraw], output: StepOutput, num_requests: int) -> None:
        """Let grammars follow the drawn tokens; add the tokens that they force."""
        drawn = {d.row: d for d in draws if output.results[d.request_id].error is None}
        num_others = max(0, num_requests - len(drawn))
        for row, forced in self._sampling.grammars.advance(list(drawn), num_others).items():
            result = output.results[drawn[row].request_id]
            result.token_ids += forced
            result.num_forced = len(forced)


def _reads_logits(draw: TokenDraw) -> bool:
    """Return whether the raw logits are read after the draws."""
    return draw.params.logprobs is not None or draw.rejection is not None
