"""Files of MXFP4: their scales are powers of two, one of them NaN."""

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_checkpoint import GgufCheckpoint
from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.core.errors import WeightMismatchError
from quire.models.gguf.gguf_config import read_gguf_config
from tools.random_gguf import random_gguf

NAME = "blk.0.ffn_down.weight"


def checkpoint(path):
    file = GgufFile(path)
    return file, GgufCheckpoint(file, read_gguf_config(file))


def test_a_scale_that_is_nan_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    random_gguf(path, "MXFP4")
    file, whole = checkpoint(path)
    assert np.isfinite(whole.tensor(NAME).float32()).all()
    data = bytearray(path.read_bytes())
    data[file.tensors[NAME].begin + 3 * 17] = 255
    path.write_bytes(data)
    with pytest.raises(WeightMismatchError, match=r"ffn_down\.weight must have scales below 255"):
        checkpoint(path)[1].tensor(NAME)
