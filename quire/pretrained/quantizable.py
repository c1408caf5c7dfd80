"""A checkpoint that is quantized when that is asked, kept where that is asked, and generates."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from quire.checkpoints.config_fields import read_json
from quire.core.errors import ConfigError
from quire.pretrained.pretrained_model import PretrainedModel
from quire.pretrained.quantization_configs import QuantizationRequest
from quire.pretrained.quantized_folder import TemporaryFolder, quantized_folder
from quire.pretrained.saved_folder import save_folder


class QuantizableModel:
    """A checkpoint of floats until it is quantized; it is loaded when it generates first.

    Args:
        where: The class that users see, for messages.
        folder: The checkpoint.
        keywords: Settings of the engine.
    """

    def __init__(self, where: str, folder: Path, keywords: dict[str, Any]) -> None:
        self._where, self._folder, self._keywords = where, folder, keywords
        self._made: TemporaryFolder | None = None
        self._model: PretrainedModel | None = None

    @property
    def quantized(self) -> bool:
        """Whether the checkpoint is quantized."""
        return "quantization_config" in read_json(self._folder / "config.json")

    @property
    def model(self) -> PretrainedModel:
        """The loaded model."""
        if self._model is None:
            self._model = PretrainedModel(self._folder, self._keywords)
        return self._model

    @property
    def config(self) -> dict[str, Any]:
        """``config.json``."""
        return read_json(self._folder / "config.json")

    def generate(self, inputs: Any = None, **options: Any) -> Any:
        """Return prompts and what follows them; see :meth:`PretrainedModel.generate`."""
        return self.model.generate(inputs, **options)

    def close(self) -> None:
        """Release the model and its temporary folder; no call follows but this one."""
        if self._model is not None:
            self._model.close()
        if self._made is not None:
            self._made.close()

    def __enter__(self) -> QuantizableModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _quantize(self, asked: QuantizationRequest, command: str) -> None:
        """Quantize the checkpoint into a temporary folder, and go on with that."""
        where = f"{self._where}.quantize"
        if self.quantized:
            raise ConfigError(f"[{where}] the model must be of floats; got one that is quantized.")
        threads = self._keywords.get("threads")
        made = quantized_folder(where, self._folder, asked, command, threads)
        if self._model is not None:
            self._model.close()
        self._folder, self._made, self._model = made.path, made, None

    def _save(self, save_dir: str | PathLike[str], shard_bytes: int | None = None) -> None:
        where = f"{self._where}.save_quantized"
        if not self.quantized:
            raise ConfigError(f"[{where}] the model must be quantized; got floats. Quantize it.")
        save_folder(where, self._folder, Path(save_dir), shard_bytes=shard_bytes)


def floats_folder(where: str, folder: Path) -> Path:
    """Return a folder whose checkpoint can be quantized.

    Raises:
        ConfigError: The checkpoint is a file, or quantized already.
    """
    if folder.is_file() or "quantization_config" in read_json(folder / "config.json"):
        raise ConfigError(f"[{where}] the model must be a folder of floats; got {folder}.")
    return folder


def quantized_source(where: str, folder: Path, method: str) -> Path:
    """Return a folder whose checkpoint is quantized by a method.

    Raises:
        ConfigError: The checkpoint is not quantized by the method.
    """
    stored = {} if folder.is_file() else read_json(folder / "config.json")
    found = (stored.get("quantization_config") or {}).get("quant_method")
    if found != method:
        raise ConfigError(
            f"[{where}] the model must be quantized by {method}; got {found or 'none'} in {folder}."
        )
    return folder
