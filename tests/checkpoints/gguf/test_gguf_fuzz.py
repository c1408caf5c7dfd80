"""Damaged GGUF files through the whole loader: packed, or refused with a clear error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.checkpoints.gguf.gguf_file import GgufFile, forget_gguf
from quire.core.errors import QuireError
from quire.kernels.registry import create_backend
from tests.models.conftest import Driver
from tools.random_gguf import random_gguf


@pytest.fixture(
    scope="module", params=["Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "TQ1_0", "MXFP4"]
)
def whole(request, tmp_path_factory):
    """A file and how many bytes its header has."""
    path = tmp_path_factory.mktemp("fuzz") / "whole.gguf"
    random_gguf(path, request.param)
    return path.read_bytes(), min(t.begin for t in GgufFile(path).tensors.values())


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    in_header=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=3),
    in_data=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=300)), max_size=6),
    end=st.one_of(st.none(), st.floats(0, 1)),
)
def test_any_bytes_load_or_are_refused(whole, tmp_path, in_header, in_data, end):
    data, header = bytearray(whole[0]), whole[1]
    for share, byte in in_header:
        data[int(share * (header - 1))] = byte
    for share, replaced in in_data:
        at = header + int(share * (len(data) - header - len(replaced)))
        data[at : at + len(replaced)] = replaced
    if end is not None:
        del data[int(end * len(data)) :]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    forget_gguf()
    backend = create_backend("cpu", threads=1)
    try:
        # Of a context that a damaged header stretches, an engine's memory plan serves what fits.
        driver = Driver(path, backend, max_model_len=16)
    except QuireError:
        return
    # Any bits are weights; what they give may be infinite, but is computed.
    with np.errstate(all="ignore"):
        logits = driver.step([np.arange(4)])
    assert logits.shape[0] == 4
