"""Rows whose embedding is given instead of looked up, as an image's are."""

import dataclasses

import numpy as np
import pytest

from quire.core.errors import UnsupportedInputError


class GivenEmbeddings:
    """A backend whose steps get embeddings for some rows before they are uploaded."""

    def __init__(self, backend):
        self.backend = backend
        self.rows = self.vectors = None

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def upload(self, batch):
        given = {"embedding_rows": self.rows, "embeddings": self.vectors}
        return self.backend.upload(dataclasses.replace(batch, **given))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_given_vectors_take_the_place_of_looked_up_ones(
    name, oracle, backend, create_driver, random_prompts
):
    model, folder = oracle(name)
    giving = GivenEmbeddings(backend)
    driver = create_driver(folder, giving)
    prompt = np.array(random_prompts([12])[0])
    table = model.get_input_embeddings().weight.detach().numpy()
    want = driver.step([prompt])
    giving.rows, giving.vectors = np.array([7, 2], np.int32), table[prompt[[7, 2]]]
    driver.start(1)
    np.testing.assert_array_equal(driver.step([prompt]), want)
    # The ids of given rows do not matter: others under the same vectors, then other vectors.
    others = prompt.copy()
    others[[2, 7]] = 3, 4
    driver.start(1)
    np.testing.assert_array_equal(driver.step([others]), want)
    giving.vectors = giving.vectors[::-1].copy()
    driver.start(1)
    got = driver.step([prompt])
    np.testing.assert_array_equal(got[:2], want[:2])
    assert (np.abs(got[2:] - want[2:]).max(-1) > 1e-3).all()
    giving.rows = np.array([7, 12], np.int32)
    driver.start(1)
    with pytest.raises(UnsupportedInputError, match=r"rows must be in \[0, 12\)"):
        driver.step([prompt])
