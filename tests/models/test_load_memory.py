"""Loading needs little more memory than the weights that it leaves."""

import subprocess
import sys

import pytest

from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.core.errors import NoKernelError
from quire.kernels.registry import create_backend
from quire.models.gguf.gguf_export import GgufExport
from tests.sizes import sized
from tools.random_checkpoint import PRESETS, random_checkpoint

CODE = """
import resource, sys
from pathlib import Path
from tests.distributed.thread_group import thread_groups
from quire.kernels.registry import create_backend
from quire.models.loader import load_opened, open_checkpoint
from quire.models.shards.rank_model import Shard

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

backend = create_backend("cpu", threads=1)
opened = open_checkpoint(Path(sys.argv[1]), "auto", 64)
shard = Shard(thread_groups(int(sys.argv[2]))[-1]) if sys.argv[2] != "1" else None
before = peak()
model = load_opened(opened, backend, shard=shard)
print(peak() - before, model.weight_bytes)
"""


#: Of half as many weights as in the full ones, four MiB are an eighth at most.
COUNTS = sized(
    {"vocab_size": 16000, "num_hidden_layers": 4}, {"vocab_size": 32000, "num_hidden_layers": 8}
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a function that writes millions of weights, once for each form."""
    made = {}

    def write(dtype, gguf_type):
        if dtype not in made:
            made[dtype] = folder = tmp_path_factory.mktemp(dtype)
            sizes = {"hidden_size": 512, "intermediate_size": 2048, "head_dim": 128}
            config = PRESETS["tiny-llama"] | sizes | COUNTS
            random_checkpoint(folder, config, dtype=dtype)
        if gguf_type is None:
            return made[dtype]
        if gguf_type not in made:
            made[gguf_type] = tmp_path_factory.mktemp(gguf_type) / "model.gguf"
            export = GgufExport(made[dtype], gguf_type)
            write_gguf(made[gguf_type], export.metadata, export.tensors)
        return made[gguf_type]

    return write


@pytest.mark.parametrize("num_ranks", sized([1, 3], [1, 2, 3]))
@pytest.mark.parametrize(
    ("dtype", "gguf_type"), [("bfloat16", None), ("float32", None), ("float32", "Q8_0")]
)
def test_peak_is_at_most_a_fifth_above_the_weights(written, dtype, gguf_type, num_ranks):
    """Those of a rank where there are several: it reads no page of what others have."""
    try:
        create_backend("cpu", threads=1)
    except (NoKernelError, ImportError) as error:
        pytest.skip(f"no backend cpu: {error}")
    path = written(dtype, gguf_type)
    command = [sys.executable, "-c", CODE, str(path), str(num_ranks)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    extra, weight_bytes = map(int, result.stdout.split())
    assert weight_bytes > sized(0.5, 1.0) * (60e6 if gguf_type else 80e6) / num_ranks
    # Four MiB for what the first load imports and allocates besides.
    assert extra <= 1.2 * weight_bytes + 4 * 2**20
