"""Finished layers of a run, in its output folder: a killed run resumes after the last one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from quire.checkpoints.checkpoint import SINGLE, Checkpoint
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.checkpoints.quantized.quantized_checkpoint import QuantizedCheckpoint
from quire.checkpoints.safetensors_writer import TensorData, write_safetensors
from quire.core.errors import ConfigError
from quire.quantizing.folder_lock import lock_folder

FOLDER = ".unfinished"
#: What the folder is called while it goes away.
REMOVED = ".removed"
RUN = "run.json"


class Unfinished:
    """Parts of a checkpoint, a folder for each layer that is done.

    Args:
        out: The checkpoint's folder.
        run: Settings that decide the bytes of the result, plain data.
        command: The command that the folder belongs to, for messages.

    Attributes:
        folder: The folder of parts, and of all else that is removed when the run ends.

    Raises:
        ConfigError: The folder holds something else, or a run of other settings.
    """

    def __init__(self, out: Path, run: Mapping[str, Any], command: str = "quantize") -> None:
        self.out, self.folder, self._command = out, out / FOLDER, command
        written = json.dumps(run, indent=1, sort_keys=True)
        if out.exists() and not out.is_dir():
            raise ConfigError(f"[{self._command}] OUT must be a folder; got the file {out}.")
        if self.folder.is_dir():
            self._check_run(written)
        elif out.is_dir() and any(out.iterdir()):
            raise ConfigError(
                f"[{command}] OUT must be a new or an empty folder; got {out}, which holds files."
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / f"{RUN}.part"
            part.write_text(written, "utf-8")
            part.replace(self.folder / RUN)
        except OSError as error:
            raise ConfigError(
                f"[{self._command}] OUT must be writable; got {out}: {error.strerror}."
            ) from None

    def _check_run(self, written: str) -> None:
        path = self.folder / RUN
        if path.exists() and path.read_text("utf-8") != written:
            raise ConfigError(
                f"[{self._command}] {self.out} has an unfinished run of other settings or another "
                "source. Give the same command, or remove the folder."
            )

    def held(self) -> AbstractContextManager[None]:
        """Keep other processes out; a ConfigError where another one writes there."""
        return lock_folder(self.folder, f"[{self._command}] OUT", self.out)

    def part(self, layer: int) -> Path:
        """Return the folder of a layer."""
        return self.folder / f"layer-{layer:05d}"

    def has(self, layer: int) -> bool:
        """Tell whether a layer is done."""
        return self.part(layer).is_dir()

    def write(
        self,
        layer: int,
        tensors: Mapping[str, TensorData],
        config: Mapping[str, Any],
        report: Mapping[str, Any],
    ) -> None:
        """Write a layer; it is there when all of it is.

        Args:
            layer: Index of the layer.
            tensors: Tensors that differ from the source's.
            config: ``quantization_config`` of the whole.
            report: Figures and notices of the layer, for the report.
        """
        part = self.folder / "part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        (part / "config.json").write_text(json.dumps({"quantization_config": config}), "utf-8")
        (part / "report.json").write_text(json.dumps(report), "utf-8")
        if tensors:
            for _ in write_safetensors(part / SINGLE, tensors):
                pass
        part.replace(self.part(layer))

    def report(self, layer: int) -> dict[str, Any]:
        """Return what is to be told of a layer."""
        found: dict[str, Any] = json.loads((self.part(layer) / "report.json").read_text("utf-8"))
        return found

    def tensors(self, layer: int) -> dict[str, TensorData]:
        """Return the tensors of a layer as they are stored."""
        if not (self.part(layer) / SINGLE).exists():
            return {}
        stored = Checkpoint(self.part(layer))
        found = {}
        for name, file in stored.files.items():
            entry = file.entries[name]
            found[name] = stored_data(stored, name)
            assert found[name].nbytes == entry.nbytes, name
        return found

    def values(self, layer: int) -> dict[str, np.ndarray]:
        """Return the float32 values of a layer's tensors, as a reader of the format has them."""
        path = self.part(layer)
        if not (path / SINGLE).exists():
            return {}
        stored, quantization = Checkpoint(path), read_quantization(path)
        source: Checkpoint | QuantizedCheckpoint = stored
        formats = quantization.formats if quantization is not None else ()
        markers = tuple(f".{form.marker}" for form in formats)
        if quantization is not None and any(name.endswith(markers) for name in stored.names):
            source = QuantizedCheckpoint(stored, quantization)
        return {name: source.tensor(name).float32() for name in source.names}

    def finish(self) -> None:
        """Remove what the result does not need; a run killed meanwhile is a finished one."""
        removed = self.folder.rename(self.out / REMOVED)
        shutil.rmtree(removed)
        folder = os.open(self.out, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def stored_data(stored: Checkpoint, name: str) -> TensorData:
    """Return a tensor of a checkpoint as it is."""
    entry = stored.entry(name)

    def read() -> np.ndarray:
        return stored.tensor(name).array if entry.dtype == "BF16" else stored.array(name)

    return TensorData(entry.dtype, entry.shape, read, lambda: stored.release(name))
