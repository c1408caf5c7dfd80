"""Packed sequences of token ids read as tuples do, and cost what their bytes cost."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.engine_request import EngineRequest
from quire.core.errors import InvalidSamplingParamsError
from quire.core.sampling_params import SamplingParams
from quire.core.token_words import TokenWords
from quire.llm.process.engine_messages import Add, to_engine
from tests.python_lines import lines_run

sequences = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4), max_size=5)


@given(first=sequences, second=sequences)
def test_it_reads_as_a_tuple_of_tuples(first, second):
    plain = tuple(map(tuple, first))
    words = TokenWords.of(first)
    assert tuple(words) == plain and words == plain and len(words) == len(plain)
    assert TokenWords.of(words) is words and bool(words) == bool(plain)
    both = words + tuple(map(tuple, second))
    assert both == [*first, *second] and both == words + TokenWords.of(second)
    assert (both == words) == (not second) and hash(both) == hash(TokenWords.of(list(both)))


@pytest.mark.parametrize("wrong", [[[1, "a"]], ["ab"], [[1.5]], [5], [[2**31]], [[None]], 7])
def test_what_is_no_token_id_is_refused(wrong):
    with pytest.raises(InvalidSamplingParamsError, match="must be lists of token ids"):
        SamplingParams(bad_words_token_ids=wrong)


def test_a_request_with_millions_of_ids_costs_no_more_to_copy_and_to_send():
    """Each id was looked at again in every copy, and by the engine between two steps: 0.6 s."""
    lines = []
    for count in (1, 1000):
        params = SamplingParams(bad_words_token_ids=[[1, 2]] * count)
        message = Add(EngineRequest("r", [1], params))

        def send(message=message, params=params):
            assert replace(params, n=2).bad_words_token_ids == params.bad_words_token_ids
            assert to_engine.decode(msgspec.msgpack.encode(message)) == message

        lines.append(lines_run(send))
    assert lines[0] == lines[1]
