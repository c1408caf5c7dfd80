"""Random checkpoints are complete: transformers and Quire both load them, and agree."""

import numpy as np
import pytest
from click.testing import CliRunner

from quire.kernels.registry import create_backend
from quire.models.loader import load_model
from tests.lazy_packages import lazy_package
from tools.random_checkpoint import PRESETS, main, random_checkpoint

transformers = lazy_package("transformers")
torch = pytest.importorskip("torch")
TINY = [name for name in PRESETS if name.startswith("tiny-")]


@pytest.mark.parametrize("preset", TINY)
def test_every_tensor_is_the_one_transformers_expects(preset, tmp_path):
    random_checkpoint(tmp_path, PRESETS[preset], dtype="float32")
    (architecture,) = PRESETS[preset]["architectures"]
    _, report = getattr(transformers, architecture).from_pretrained(
        tmp_path, output_loading_info=True
    )
    # LLaVA takes the states before an encoder's last layer, which is left out.
    missing = {name for name in report["missing_keys"] if "vision_tower" not in name}
    assert not missing
    assert not report["unexpected_keys"]
    assert load_model(tmp_path, create_backend("reference", threads=1)).weight_bytes > 0


def test_same_seed_same_bytes(tmp_path):
    contents = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        random_checkpoint(tmp_path / name, PRESETS["tiny-llama"], seed=seed, dtype="bfloat16")
        contents.append((tmp_path / name / "model.safetensors").read_bytes())
    assert contents[0] == contents[1] != contents[2]


def test_bfloat16_rounds_to_nearest(tmp_path):
    from safetensors.torch import load_file

    tensors = {}
    for dtype in ("float32", "bfloat16"):
        random_checkpoint(tmp_path / dtype, PRESETS["tiny-gpt2"], dtype=dtype)
        tensors[dtype] = load_file(tmp_path / dtype / "model.safetensors")
    for name, values in tensors["float32"].items():
        assert torch.equal(values.bfloat16(), tensors["bfloat16"][name])


def test_command_writes_a_tokenizer_that_round_trips(tmp_path):
    result = CliRunner().invoke(main, ["tiny-qwen3", str(tmp_path / "out"), "--dtype", "float16"])
    assert result.exit_code == 0, result.output
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer("héllo\n").input_ids
    assert tokenizer.decode(ids) == "héllo\n"
    assert np.max(ids) < PRESETS["tiny-qwen3"]["vocab_size"]
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
