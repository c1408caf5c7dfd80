"""The residual stream that enters chosen layers, against transformers and between batches."""

import numpy as np
import pytest

from quire.core.errors import UnsupportedInputError
from quire.layers.residual_capture import ResidualCapture

torch = pytest.importorskip("torch")


class Capturing:
    """A decoder whose steps keep the residual stream of some layers."""

    def __init__(self, decoder, capture):
        self.decoder, self.capture = decoder, capture

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def forward(self, batch, kv_cache):
        return self.decoder.forward(batch, kv_cache, capture=self.capture)


@pytest.fixture
def capture_of(oracle, backend, create_driver):
    """Return a function that makes a driver whose decoder keeps what enters ``layers``."""

    def make(name, layers):
        driver = create_driver(oracle(name)[1], backend)
        config = driver.decoder.config
        capture = ResidualCapture(backend, layers, config.hidden_size, config.num_layers)
        driver.decoder = Capturing(driver.decoder, capture)
        return driver

    return make


def states(driver):
    return np.array(driver.backend.to_numpy(driver.decoder.capture.states))


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2"])
@pytest.mark.parametrize("layers", [[0, 1, 2], [2]])
def test_equals_the_hidden_states_of_transformers(
    name, layers, oracle, capture_of, random_prompts, backend
):
    driver = capture_of(name, layers)
    (prompt,) = random_prompts([19])
    with torch.no_grad():
        found = oracle(name)[0](torch.tensor([prompt]), output_hidden_states=True).hidden_states
    want = np.concatenate([found[layer][0].numpy() for layer in layers], axis=1)
    driver.step([np.array(prompt)], wanted="last")
    got = states(driver)
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


def test_chunks_and_company_change_nothing(capture_of, random_prompts, backend):
    # torch's products round differently with the shapes; the kernels promise the bits.
    tolerance = 1e-5 if backend.name == "reference" else 0
    driver = capture_of("llama", [0, 2])
    first, second = (np.array(prompt) for prompt in random_prompts([30, 21]))
    driver.step([first], wanted="last")
    whole = states(driver)
    driver.start(2)
    driver.step([first[:7], second[:20]], wanted="none")
    np.testing.assert_allclose(states(driver)[:7], whole[:7], tolerance, tolerance)
    driver.step([first[7:], second[20:]])
    rest = states(driver)[: len(first) - 7]
    np.testing.assert_allclose(rest, whole[7:], tolerance, tolerance)


def test_logits_are_those_without(oracle, backend, create_driver, capture_of, random_prompts):
    (prompt,) = random_prompts([12])
    want = create_driver(oracle("qwen3")[1], backend).step([np.array(prompt)])
    np.testing.assert_array_equal(capture_of("qwen3", [1]).step([np.array(prompt)]), want)


@pytest.mark.parametrize("layers", [[], [1, 1], [2, 1], [-1], [3]])
def test_layers_that_are_not_there_are_refused(layers, backend):
    with pytest.raises(UnsupportedInputError, match=r"ascending indices in \[0, 3\)"):
        ResidualCapture(backend, layers, 8, 3)
