"""What reaches the backend's ``sample``: numbers, history, bias, forbidden and allowed ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.sampling_params import SamplingParams
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.batch.token_table import TokenTable
from quire.runner.step.sampling_state import SamplingState

EOS = 2


class NumpyArrays:
    """The one thing the sampling state asks of a backend."""

    def upload(self, arrays: Any) -> Any:
        return arrays


class Rows:
    """A table and its sampling state, filled by name."""

    def __init__(self) -> None:
        self.table = TokenTable(1, 4)
        self.state = SamplingState(self.table, [EOS], NumpyArrays())  # type: ignore[arg-type]
        self.rows: list[int] = []

    def add(self, prompt: list[int], output: list[int], seed: int = 0, **params: Any) -> None:
        row = self.table.add(str(len(self.rows)), prompt + output, len(prompt))
        self.state.set(row, SamplingParams(**params), seed)
        self.rows.append(row)

    def batch(self) -> SamplingBatch:
        rows = np.array(self.rows, np.int32)
        return self.state.batch(rows, self.table.num_tokens[rows])


def part(flat: Any, offsets: Any, i: int) -> list[float]:
    return flat[offsets[i] : offsets[i + 1]].tolist()


def bias(batch: SamplingBatch, i: int) -> dict[float, float]:
    ids = part(batch.bias_ids, batch.bias_offsets, i)
    return dict(zip(ids, part(batch.bias_values, batch.bias_offsets, i), strict=True))


def test_plain_numbers_of_each_row() -> None:
    rows = Rows()
    rows.add([5, 6], [7], seed=-1, temperature=0.5, top_k=-1, top_p=0.25, min_p=0.125)
    rows.add([5], [], seed=2**70 + 3, temperature=0.0, top_k=9)
    batch = rows.batch()
    assert batch.temperature.tolist() == [0.5, 0.0]
    assert batch.top_p.tolist() == [0.25, 1.0]
    assert batch.min_p.tolist() == [0.125, 0.0]
    assert batch.top_k.tolist() == [0, 9]
    assert batch.seed.tolist() == [2**64 - 1, 3]
    assert batch.position.tolist() == [1, 0]
    assert batch.history_offsets.tolist() == batch.bias_offsets.tolist() == [0, 0, 0]
    assert batch.temperature.dtype == np.float32 and batch.temperature.flags.c_contiguous
    assert (batch.seed.dtype, batch.position.dtype) == (np.uint64, np.int64)


def test_history_only_where_a_penalty_reads_it() -> None:
    rows = Rows()
    rows.add([1, 2], [3])
    rows.add([4, 5], [6, 6], repetition_penalty=1.1)
    rows.add([7], [8], presence_penalty=0.5)
    batch = rows.batch()
    assert [part(batch.history_ids, batch.history_offsets, i) for i in range(3)] == [
        [],
        [4, 5, 6, 6],
        [7, 8],
    ]
    assert batch.num_prompt_tokens.tolist() == [2, 2, 1]


def test_penalties_look_at_the_last_tokens_alone() -> None:
    """What Ollama's clients send by default, ``repeat_last_n: 64``, was refused."""
    rows = Rows()
    rows.add([1, 2, 3], [4, 5], repetition_penalty=1.1, repeat_last_n=3)
    rows.add([1, 2, 3], [4, 5], frequency_penalty=1.0, repeat_last_n=1)
    rows.add([1, 2, 3], [4, 5], presence_penalty=1.0, repeat_last_n=0)
    rows.add([1, 2, 3], [4, 5], repetition_penalty=1.1, repeat_last_n=9)
    batch = rows.batch()
    assert [part(batch.history_ids, batch.history_offsets, i) for i in range(4)] == [
        [3, 4, 5],
        [5],
        [],
        [1, 2, 3, 4, 5],
    ]
    assert batch.num_prompt_tokens.tolist() == [1, 0, 3, 3]
    assert batch.position.tolist() == [2, 2, 2, 2]


def test_min_tokens_forbids_endings_until_reached() -> None:
    rows = Rows()
    rows.add([1], [3], min_tokens=2, stop_token_ids=[9])
    rows.add([1], [3, 3], min_tokens=2, stop_token_ids=[9])
    rows.add([1], [], min_tokens=2, ignore_eos=True)
    batch = rows.batch()
    assert bias(batch, 0) == {EOS: -np.inf, 9: -np.inf}
    assert bias(batch, 1) == bias(batch, 2) == {}


def test_bad_words_forbid_their_last_token_after_the_others() -> None:
    rows = Rows()
    words = ((5,), (6, 7), (6, 6, 8), (1, 3, 9))
    rows.add([1], [3, 6], bad_words_token_ids=words)
    rows.add([1], [6, 6], bad_words_token_ids=words)
    rows.add([1], [3], bad_words_token_ids=words)
    batch = rows.batch()
    assert set(bias(batch, 0)) == {5, 7}
    assert set(bias(batch, 1)) == {5, 7, 8}
    # The prompt's tokens are no part of what was generated.
    assert set(bias(batch, 2)) == {5}


def test_logit_bias_and_allowed_ids() -> None:
    rows = Rows()
    rows.add([1], [], logit_bias={4: 2.5, 5: -1.0})
    rows.add([1], [], allowed_token_ids=[8, 3, 8])
    batch = rows.batch()
    assert bias(batch, 0) == {4: 2.5, 5: -1.0}
    assert part(batch.allowed_ids, batch.allowed_offsets, 0) == []
    assert part(batch.allowed_ids, batch.allowed_offsets, 1) == [3, 8]


def test_settings_of_a_former_owner_do_not_stay() -> None:
    rows = Rows()
    rows.add([1], [], logit_bias={4: 2.5}, top_k=3)
    rows.table.remove("0")
    rows.rows.clear()
    rows.add([1], [])
    batch = rows.batch()
    assert bias(batch, 0) == {}
    assert batch.top_k.tolist() == [0]
