"""A linear may be wrapped anywhere, as an adapter of some of the batch's requests would do."""

import numpy as np
import pytest

MODELS = ["llama", "llama-biased-tied", "mistral", "mixtral", "qwen2", "qwen3", "gpt2"]


class Wrapped:
    """Delegates to a linear and adds a number to each row: that of the request it belongs to.

    Args:
        deltas: By request of the batch; None adds nothing.
    """

    def __init__(self, linear, deltas, backend):
        self.linear, self.deltas, self.backend = linear, deltas, backend
        self.batches = []

    def __getattr__(self, name):
        return getattr(self.linear, name)

    def __call__(self, x, out=None, rows=None):
        return self._add(self.linear(x, out, rows), rows)

    def lookup(self, ids, out=None, rows=None):
        return self._add(self.linear.lookup(ids, out, rows), rows)

    def _add(self, y, rows):
        batch = rows.batch
        self.batches.append(batch)
        indices = np.arange(len(batch.input_ids)) if rows.indices is None else rows.indices
        assert len(y) == len(indices)
        if self.deltas is not None:
            starts = self.backend.to_numpy(batch.query_start_loc)
            request = np.searchsorted(starts, np.asarray(indices), side="right") - 1
            deltas = np.array(self.deltas, np.float32)[request]
            y += self.backend.from_numpy(deltas[:, None])
        return y


class WrappingBackend:
    """A backend all of whose linears are wrapped."""

    def __init__(self, backend, deltas):
        self.backend, self.deltas = backend, deltas
        self.linears = []

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def linear(self, *arguments, **options):
        made = self.backend.linear(*arguments, **options)
        self.linears.append(Wrapped(made, self.deltas, self.backend))
        return self.linears[-1]


@pytest.fixture
def logits(oracle, backend, create_driver):
    """Return a function that runs prompts in one batch, the first one's start in an earlier step.

    It gives the logits of the prompts' second halves and the wrapped linears.
    """

    def run(name, prompts, deltas, wanted="all"):
        wrapping = WrappingBackend(backend, deltas)
        driver = create_driver(oracle(name)[1], wrapping)
        driver.start(len(prompts))
        driver.step([prompt[:5] for prompt in prompts], wanted="none")
        return driver.step([prompt[5:] for prompt in prompts], wanted), wrapping.linears

    return run


@pytest.mark.parametrize("name", MODELS)
def test_a_wrapper_that_adds_nothing_changes_no_bit(
    name, oracle, backend, create_driver, logits, random_prompts
):
    prompts = [np.array(prompt) for prompt in random_prompts([14, 9])]
    driver = create_driver(oracle(name)[1], backend)
    driver.start(2)
    driver.step([prompt[:5] for prompt in prompts], wanted="none")
    want = driver.step([prompt[5:] for prompt in prompts])
    got, linears = logits(name, prompts, None)
    np.testing.assert_array_equal(got, want)
    # Embedding, projections, router and head were all asked, about the same step.
    batches = {id(linear.batches[-1]) for linear in linears}
    assert len(batches) == 1


@pytest.mark.parametrize("wanted", ["all", "last"])
@pytest.mark.parametrize("name", MODELS)
def test_each_row_gets_what_its_request_has(name, wanted, backend, logits, random_prompts):
    """Together, two requests with numbers of their own give what each gives alone."""
    prompts = [np.array(prompt) for prompt in random_prompts([14, 9])]
    together, _ = logits(name, prompts, [0.0, 0.25], wanted)
    rows = {"all": [9, 4], "last": [1, 1]}[wanted]
    first, second = together[: rows[0]], together[rows[0] :]
    assert len(second) == rows[1]
    plain, _ = logits(name, prompts[:1], None, wanted)
    shifted, _ = logits(name, prompts[1:], [0.25], wanted)
    unshifted, _ = logits(name, prompts[1:], None, wanted)
    assert np.abs(shifted - unshifted).max() > 0.1
    for got, want in ((first, plain), (second, shifted)):
        if backend.name == "reference":
            # torch's attention rounds differently with the shapes; the kernels promise the bits.
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
        else:
            np.testing.assert_array_equal(got, want)
