"""Attention of picture encoders against its definition: spans of any lengths, whole and cut."""

import numpy as np
import pytest

from quire.models.vision import attention
from quire.models.vision.attention import SpanAttention
from quire.models.vision.slices import finish

HEADS, SIZE = 6, 12
LENGTHS = [1, 5, 64, 65, 300, 129, 3]


def run(made, backend, qkv, lengths, positions=None):
    out = backend.empty((len(qkv), HEADS * SIZE), "float32")
    finish(made.run(backend.from_numpy(qkv.copy()), made.plan(lengths, positions), out))
    return np.array(backend.to_numpy(out))


def defined(qkv, lengths):
    """Return softmax(q k / sqrt(H)) v of each span and head, in float64."""
    out, start = [], 0
    for length in lengths:
        rows = qkv[start : start + length].astype(np.float64).reshape(length, 3, HEADS, SIZE)
        q, k, v = rows.transpose(1, 2, 0, 3)
        weights = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(SIZE))
        weights /= weights.sum(-1, keepdims=True)
        out.append((weights @ v).transpose(1, 0, 2).reshape(length, -1))
        start += length
    return np.concatenate(out)


@pytest.fixture
def qkv():
    shape = sum(LENGTHS), 3 * HEADS * SIZE
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_spans_see_themselves_alone(backend, qkv):
    got = run(SpanAttention(backend, HEADS, SIZE), backend, qkv, LENGTHS)
    np.testing.assert_allclose(got, defined(qkv, LENGTHS), atol=2e-6)


@pytest.mark.parametrize("work", [1, 50_000, 2_000_000])
def test_the_cut_changes_nothing(backend, qkv, monkeypatch, work):
    made = SpanAttention(backend, HEADS, SIZE)
    whole = run(made, backend, qkv, LENGTHS)
    monkeypatch.setattr(attention, "SLICE_WORK", work)
    np.testing.assert_array_equal(run(made, backend, qkv, LENGTHS), whole)


def test_a_head_of_a_long_span_is_several_slices(backend, monkeypatch):
    monkeypatch.setattr(attention, "SLICE_WORK", 2 * 600 * SIZE * 256)
    made = SpanAttention(backend, HEADS, SIZE)
    (part,) = made.plan([600])
    assert [rows.stop - rows.start for rows, _ in part.queries] == [256, 256, 88]
    qkv = np.random.default_rng(2).standard_normal((600, 3 * HEADS * SIZE)).astype(np.float32)
    np.testing.assert_allclose(run(made, backend, qkv, [600]), defined(qkv, [600]), atol=2e-6)


@pytest.mark.parametrize("work", [1, 2**40])
def test_rows_turn_by_two_positions(backend, qkv, monkeypatch, work):
    monkeypatch.setattr(attention, "SLICE_WORK", work)
    quarter = SIZE // 4
    frequencies = 100.0 ** -(np.arange(quarter) / quarter)
    angles = np.arange(20)[:, None] * np.tile(frequencies, 2)
    rope = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions = np.random.default_rng(1).integers(0, 20, (2, len(qkv)), dtype=np.int32)
    tables = tuple(backend.from_numpy(table) for table in rope)
    made = SpanAttention(backend, HEADS, SIZE, tables, (quarter, quarter))
    got = run(made, backend, qkv, LENGTHS, positions)
    sections = np.repeat([0, 1], quarter)
    turn = positions[sections, np.arange(len(qkv))[:, None]] * np.tile(frequencies, 2)
    turned = qkv.reshape(len(qkv), 3, HEADS, SIZE).copy()
    low, high = turned[:, :2, :, : SIZE // 2].copy(), turned[:, :2, :, SIZE // 2 :].copy()
    cosine, sine = np.cos(turn)[:, None, None], np.sin(turn)[:, None, None]
    turned[:, :2, :, : SIZE // 2] = low * cosine - high * sine
    turned[:, :2, :, SIZE // 2 :] = high * cosine + low * sine
    wanted = defined(turned.reshape(qkv.shape), LENGTHS)
    np.testing.assert_allclose(got, wanted, atol=3e-6)
