"""Windows count each token once, and steps compute each once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import ConfigError
from quire.evaluation.window_steps import create_batch, most_blocks, plan_steps, targets
from quire.evaluation.windows import Cut, first_tokens


@st.composite
def cuts(draw):
    start = tuple(draw(st.lists(st.integers(900, 999), max_size=2)))
    window = draw(st.integers(max(2, len(start) + 1), 40))
    stride = draw(st.none() | st.integers(1, window - len(start)))
    return Cut(window, stride, start)


@given(cuts(), st.lists(st.integers(0, 120), min_size=1, max_size=4))
def test_every_token_counts_once(cut, lengths):
    texts = [list(range(1000 * i, 1000 * i + length)) for i, length in enumerate(lengths, 1)]
    windows = cut.windows(texts)
    counted = [token for window in windows for token in window.token_ids[window.first :].tolist()]
    assert len(counted) == len(set(counted))
    # What has no token before it in its window does not count.
    no_overlap = cut.stride is None or cut.stride == cut.room
    left_out = set()
    if not cut.start:
        for text in texts:
            left_out |= set(text[:: cut.room] if no_overlap else text[:1])
    assert set(counted) == {token for text in texts for token in text} - left_out
    for window in windows:
        assert len(window.token_ids) <= cut.window and window.num_counted > 0
        assert tuple(window.token_ids[: len(cut.start)]) == cut.start
        ids = window.token_ids[len(cut.start) :].tolist()
        assert ids == list(range(ids[0], ids[0] + len(ids)))  # of one text, nothing missing


def test_a_stride_gives_tokens_more_context():
    (first, second, third) = Cut(10, 4).windows([list(range(18))])
    assert (first.first, second.first, third.first) == (1, 6, 6)
    assert second.token_ids.tolist() == list(range(4, 14))


@pytest.mark.parametrize(
    ("window", "stride", "start", "flag"),
    [(1, None, (), "--window"), (2, None, (5, 6), "--window"), (8, 0, (), "--stride"),
     (8, 9, (), "--stride"), (8, 8, (5,), "--stride")],
)  # fmt: skip
def test_windows_without_text_and_strides_that_leave_out_are_refused(window, stride, start, flag):
    with pytest.raises(ConfigError, match=f"{flag} must"):
        Cut(window, stride, start)


def test_the_first_tokens_of_texts():
    texts = [[1, 2, 3], [4, 5], [6]]
    assert first_tokens(texts, 4) == [[1, 2, 3], [4]]
    assert first_tokens(texts, 3) == [[1, 2, 3]]
    assert first_tokens(texts, 100) == texts


@settings(deadline=None)  # some cuts have thousands of windows
@given(cuts(), st.lists(st.integers(2, 120), min_size=1, max_size=4), st.integers(1, 64),
       st.integers(1, 8))  # fmt: skip
def test_steps_compute_every_token_once_in_blocks_of_its_own(cut, lengths, step_tokens, block_size):
    windows = cut.windows([list(range(length)) for length in lengths])
    num_blocks = most_blocks(cut.window, step_tokens, block_size)
    seen = {index: [] for index in range(len(windows))}
    rows, following = 0, []
    for step in plan_steps(windows, step_tokens, block_size):
        batch = create_batch(step, block_size)
        assert sum(piece.end - piece.begin for piece in step) == len(batch.input_ids) <= step_tokens
        assert len(set(batch.slot_mapping.tolist())) == len(batch.slot_mapping)
        used = set(batch.block_tables[batch.block_tables > 0].tolist())
        assert used <= set(range(1, num_blocks))
        for row, piece in enumerate(step):
            seen[piece.index] += range(piece.begin, piece.end)
            part = slice(batch.query_start_loc[row], batch.query_start_loc[row + 1])
            places = batch.positions[part]
            blocks = batch.block_tables[row][places // block_size]
            np.testing.assert_array_equal(
                batch.slot_mapping[part], blocks * block_size + places % block_size
            )
            assert batch.seq_lens[row] == piece.end
        rows += len(batch.logits_indices)
        following += targets(step).tolist()
    assert all(seen[i] == list(range(len(w.token_ids))) for i, w in enumerate(windows))
    assert rows == sum(window.num_counted for window in windows)
    assert following == [t for w in windows for t in w.token_ids[w.first :].tolist()]
