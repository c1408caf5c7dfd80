"""The bytes of packed weights, which files keep: the same on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from quire.kernels.backend import Weight
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from tests.quantization.gguf_cases import random_matrix

pytestmark = pytest.mark.kernels("pack_linear", "pack_gguf")


def packed_bytes(weight: Weight) -> bytes:
    (packed,) = CpuLinear([weight], [], "bfloat16").packed
    return bytes(packed.data)


#: Of the layouts of version 2.
DIGESTS = {
    "floats": "537f0fb550e88c79",
    "Q8_0": "cb38d5b2ce12ae13",
    "Q4_K": "2eee3b6233b5bd56",
    "Q2_K": "81b7529a32a1eec3",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_layouts_are_those_of_their_version(isa: str, name: str) -> None:
    """Every instruction set packs the same bytes; other bytes need another version."""
    assert native.packed_weights_version == 2
    if name == "floats":
        values = np.arange(40 * 70, dtype=np.float32).reshape(40, 70)
        weight: Weight = HostTensor("w", "float32", values)
    else:
        weight = random_matrix(name, 40, 512)
    assert hashlib.sha256(packed_bytes(weight)).hexdigest()[:16] == DIGESTS[name]
