"""FIFOs, devices and files too large in a checkpoint's folder are refused at once."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import quire
from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.importance_matrix import read_importance_matrix
from quire.core.errors import ConfigError, ModelLoadError
from quire.kernels.registry import create_backend
from quire.llm.requests.generation_defaults import read_generation_config
from quire.models.adapters.peft_folder import hash_adapter
from quire.models.adapters.peft_settings import read_settings
from quire.models.config.config_reader import read_model_config
from quire.models.loader import load_model
from quire.store.hub import resolve_model
from quire.store.preset_file import read_preset_file
from quire.system.regular_files import open_regular, read_regular
from quire.text.tokenizers.tokenizer import load_tokenizer


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _load(folder: Path) -> object:
    return load_model(folder, create_backend("cpu", threads=1), max_model_len=16)


#: The file that is replaced, and what reads it.
READERS: dict[str, Callable[[Path], object]] = {
    "config.json": read_model_config,
    "model.safetensors": _load,
    "model.safetensors.index.json": _load,
    "tokenizer_config.json": load_tokenizer,
    "special_tokens_map.json": load_tokenizer,
    "added_tokens.json": load_tokenizer,
    "tokenizer.model": load_tokenizer,
    "chat_template.jinja": load_tokenizer,
    "chat_template.json": load_tokenizer,
    "generation_config.json": lambda folder: read_generation_config(folder, "auto"),
    "adapter_config.json": read_settings,
    "adapter_model.safetensors": hash_adapter,
    "modules.json": read_model_config,
    "model.gguf": lambda folder: GgufFile(folder / "model.gguf"),
    "imatrix.dat": lambda folder: read_importance_matrix(folder / "imatrix.dat"),
    "preset.toml": lambda folder: read_preset_file(folder / "preset.toml"),
}
#: Files in whose place another one would be read.
INSTEAD = {
    "model.safetensors.index.json": "model.safetensors",
    "tokenizer.model": "tokenizer.json",
    "chat_template.json": "chat_template.jinja",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_model("quire-tiny"), tmp_path / "model"))


@pytest.mark.parametrize("make", [_fifo, _device])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused(
    folder: Path, name: str, make: Callable[[Path], None]
) -> None:
    """A FIFO had the thread that loads wait for ever, /dev/zero took 6.7 GiB."""
    for other in (name, INSTEAD.get(name, name)):
        (folder / other).unlink(missing_ok=True)
    if name == "adapter_model.safetensors":
        (folder / "adapter_config.json").write_text("{}")
    make(folder / name)
    with pytest.raises((ConfigError, ModelLoadError)):
        READERS[name](folder)


def test_a_file_of_settings_has_a_bound(folder: Path) -> None:
    """300 MB of config were parsed, in many times as much memory."""
    with (folder / "config.json").open("r+b") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(ModelLoadError, match="must be readable; got more than 16 MiB"):
        read_model_config(folder)


def test_a_file_as_large_as_its_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert read_regular(path, 100) == bytes(100)
    with pytest.raises(OSError, match="more than"):
        read_regular(path, 99)
    with pytest.raises(OSError, match="no regular file"):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers must be <= 1024; got 1000000000\."),
        ({"num_attention_heads": 10**9}, "num_attention_heads must be <= 4096"),
        (
            {
                "architectures": ["MixtralForCausalLM"],
                "num_local_experts": 1024,
                "num_hidden_layers": 1024,
            },
            "must have <= 65536 experts in all layers; got 1048576",
        ),
    ],
)
def test_counts_that_no_model_has_are_refused(
    folder: Path, changes: dict[str, object], rule: str
) -> None:
    """Names for each layer were made before a tensor was looked for: > 30 s, and all memory."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelLoadError, match=rule):
        read_model_config(folder)


#: Files of this program, or that it has written itself.
OWN = {"named_models.py": "the catalogue", "hub_download.py": "a part that it downloads"}


def test_files_of_models_are_opened_in_one_place() -> None:
    root = Path(quire.__file__).parent
    found = [
        str(path.relative_to(root))
        for folder in ("models", "text")
        for path in (root / folder).rglob("*.py")
        if path.name not in OWN
        and re.search(r"\.read_(text|bytes)\(|open\(\"rb\"", path.read_text())
    ]
    assert not found, "quire.system.regular_files has what reads them"


def test_brackets_in_a_preset_were_a_traceback(tmp_path):
    path = tmp_path / "preset.toml"
    path.write_text("system = " + "[" * 5000)
    with pytest.raises(ConfigError, match="must be a readable TOML file"):
        read_preset_file(path)
