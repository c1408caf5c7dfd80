"""A loaded model's losses: against a literal definition, and whatever is computed together."""

import math

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.evaluation import local_model
from quire.evaluation.figures import by_position, compare, mean_loss, perplexity
from quire.evaluation.local_model import LocalModel
from quire.evaluation.windows import Cut
from quire.kernels.registry import create_backend
from quire.settings.config import EngineConfig


def losses_of(model, windows):
    return list(model.losses(windows, lambda count: None))


def compared(model, reference, windows):
    return compare(list(model.compare(reference, windows, lambda count: None)))


@pytest.fixture(scope="module")
def whole(model, windows):
    return losses_of(model, windows)


def test_perplexity_is_that_of_the_definition(folder, whole, windows):
    """A token's probability at a time, of the logits of each window alone."""
    torch = pytest.importorskip("torch")
    from benchmarks.quality import quire_logits

    together = np.stack([window.token_ids for window in windows[:9]])
    logits = quire_logits(folder, together, {}, create_backend("cpu", threads=1))
    total, count = 0.0, 0
    for ids, rows, part in zip(together.tolist(), logits, whole, strict=False):
        probabilities = torch.softmax(torch.from_numpy(rows).double(), -1)
        expected = [-math.log(probabilities[i - 1, ids[i]]) for i in range(1, len(ids))]
        np.testing.assert_allclose(part, expected, atol=2e-6)
        total, count = total + sum(expected), count + len(expected)
    assert count == 9 * 63
    assert perplexity(whole[:9]).value == pytest.approx(math.exp(total / count), rel=1e-6)


def test_windows_have_the_same_losses_alone_and_together(model, whole, windows):
    alone = [losses_of(model, [window])[0] for window in windows]
    backwards = losses_of(model, windows[::-1])[::-1]
    for part, one, other in zip(whole, alone, backwards, strict=True):
        np.testing.assert_array_equal(part, one)
        np.testing.assert_array_equal(part, other)


@pytest.mark.parametrize("tokens", [1, 48, 100])
def test_windows_have_the_same_losses_in_parts(load, whole, windows, tokens):
    parts = load(dtype="float32", max_num_batched_tokens=tokens, block_size=8)
    count = 1 if tokens == 1 else len(windows)
    for one, other in zip(whole[:count], losses_of(parts, windows[:count]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_few_rows_of_logits_exist_at_once(model, whole, windows, monkeypatch):
    seen = []
    plain = model.logits
    monkeypatch.setattr(local_model, "LOGITS_BYTES", 5 * 4 * model.vocab_size)
    monkeypatch.setattr(model, "logits", lambda hidden: seen.append(len(hidden)) or plain(hidden))
    for one, other in zip(whole, losses_of(model, windows), strict=True):
        np.testing.assert_array_equal(one, other)
    assert max(seen) == 5 and sum(seen) == 590


def test_overlapping_windows_count_each_token_with_more_context(model, ids, whole):
    windows = Cut(64, 16).windows([ids[:600]])
    found = losses_of(model, windows)
    assert sum(map(len, found)) == 599
    np.testing.assert_array_equal(found[0], whole[0])
    assert mean_loss(found).value < mean_loss(whole).value


def test_progress_adds_up(model, windows):
    counts = []
    list(model.losses(windows, counts.append))
    assert sum(counts) == sum(len(window.token_ids) for window in windows)


def test_a_model_is_itself(model, load, windows, whole):
    found = compared(model, load(dtype="float32"), windows)
    assert found.perplexity == found.reference_perplexity == perplexity(whole)
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == (1, 1, 1)
    assert found.divergence.value == found.divergence.high == found.divergence_p99 == 0
    assert found.agreement.value == found.agreement.high == 1
    assert 0.98 < found.agreement.low < 1


def test_fewer_bits_are_worse(model, load, windows):
    eight, four, two = (
        compared(load(quantization=name), model, windows) for name in ("int8", "int4", "int2")
    )
    assert eight.divergence.value < four.divergence.value < two.divergence.value
    assert eight.agreement.value > four.agreement.value > two.agreement.value
    assert two.ratio.low > 1.5 > eight.ratio.high
    # Paired, the interval of the ratio is far narrower than that of the perplexities.
    widths = [(e.high - e.low) / e.value for e in (eight.ratio, eight.perplexity)]
    assert widths[0] < widths[1] / 5


def test_losses_by_position(whole, windows, monkeypatch):
    monkeypatch.setattr("quire.evaluation.figures.BUCKET_ENDS", (4, 16))
    buckets = by_position(whole, [window.first for window in windows])
    assert [(b.begin, b.end) for b in buckets] == [(0, 4), (4, 16), (16, 64)]
    assert sum(b.num_tokens for b in buckets) == 590
    first = np.concatenate([part[:3] for part in whole])
    assert buckets[0].num_tokens == len(first) == 30
    assert buckets[0].loss.value == pytest.approx(first.mean())
    assert buckets[0].loss.value > buckets[2].loss.value
    assert buckets[1].perplexity.value == pytest.approx(math.exp(buckets[1].loss.value))


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(folder, monkeypatch):
    small = local_model.read_machine()
    monkeypatch.setattr(
        local_model, "read_machine", lambda: type(small)(small.num_cores, small.total_bytes, 10**6)
    )
    config = EngineConfig.from_keywords(threads=1)
    with pytest.raises(ConfigError, match=r"quire-tiny must fit in .* of free memory; it needs"):
        LocalModel(folder, config, 64)
