"""Sums of the inputs of an unquantized model's linears, kept in a folder for every method.

```
statistics.json                what they are of: the source, the samples
layer-00000.safetensors        of each linear that saw inputs, by its first module's name:
    NAME.products.BEGIN  F64 (512, K - BEGIN)   sums of products, from the diagonal on
    NAME.magnitudes      F64 (K,)               sums of absolute values
    NAME.squares         F64 (K,)               sums of squares
    NAME.largest         F32 (K,)
    NAME.sample          F32 (R, K)             some inputs as they are
    NAME.rows            I64 (1,)               how many were seen
```
T tokens of all samples, K width of a linear's inputs, R of those that are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.file_state import file_state
from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.checkpoints.safetensors_writer import TensorData, tensor_data, write_safetensors
from quire.core.errors import ConfigError
from quire.kernels.backend import Backend
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.weight_map import LinearWeights
from quire.quantizing.folder_lock import lock_folder
from quire.quantizing.inputs.input_sums import PANEL, SAMPLE_ROWS, InputSums, LinearSums
from quire.quantizing.inputs.layer_inputs import Bar, OnShare, create_states
from quire.quantizing.inputs.layer_runner import LayerRunner

#: Of the arithmetic and the layout: others are of no use.
VERSION = 1
KEY = "statistics.json"
Linears = Sequence[Sequence[LinearWeights]]


class Statistics:
    """A folder of sums; see :class:`~quire.quantizing.inputs.layer_inputs.LayerInputs`.

    Args:
        folder: The folder, which is made if it is not there.
        source: The checkpoint's identity, the result of :func:`source_state`.
        samples: Token ids, (length,) int32 each.

    Raises:
        ConfigError: The folder holds something else, or sums of another source or text.
    """

    def __init__(
        self, folder: Path, source: Sequence[Sequence[Any]], samples: Sequence[np.ndarray]
    ) -> None:
        self.folder, self._samples = folder, samples
        key = {
            "version": VERSION,
            "source": [list(state) for state in source],
            "samples": samples_digest(samples),
        }
        path = folder / KEY
        if path.is_file():
            self._check(path, key)
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"[quantize] --statistics must be a new or an empty folder, or one of statistics; "
                f"got {folder}."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(key, indent=1), "utf-8")
        except OSError as error:
            raise ConfigError(
                f"[quantize] --statistics must be writable; got {folder}: {error.strerror}."
            ) from None

    def _check(self, path: Path, key: Mapping[str, Any]) -> None:
        try:
            stored = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"[quantize] {path} must be JSON; got {error}.") from None
        found = stored if isinstance(stored, dict) else {}
        names = {"version": "version", "source": "source", "samples": "calibration text"}
        for name, told in names.items():
            if found.get(name) != key[name]:
                raise ConfigError(
                    f"[quantize] --statistics must be of this {told}; got {self.folder}, which is "
                    "of another. Name another folder, or remove it."
                )

    def collect(
        self, opened: OpenedCheckpoint, backend: Backend, linears: Linears, bar: Bar
    ) -> None:
        """Compute the layers whose sums are not there; with all there, compute nothing.

        Args:
            opened: The checkpoint of floats.
            backend: The backend that computes.
            linears: Linears of each layer.
            bar: The progress bar.

        Raises:
            ConfigError: Another process writes to the folder.
            OSError: The disk is full.
        """
        missing = {n for n in range(len(linears)) if not self._path(n).is_file()}
        if not missing:
            return
        alone = lock_folder(self.folder, "[quantize] --statistics", self.folder)
        with alone, bar("statistics", max(missing) + 1) as advance:
            runner = LayerRunner(opened, backend, self._samples)
            file = self.folder / "states.bin"
            states = create_states((runner.num_tokens, opened.config.hidden_size), file)
            runner.embed(states)
            for layer in range(max(missing) + 1):
                sums = InputSums(runner.num_tokens)
                runner.run(
                    layer,
                    states,
                    {},
                    sums.add if layer in missing else None,
                    on_tokens=partial(_show, advance, layer, runner.num_tokens),
                )
                if layer in missing:
                    for _ in write_safetensors(self._path(layer), _tensors(sums)):
                        pass
            file.unlink(missing_ok=True)

    def sums(
        self,
        layer: int,
        linears: Sequence[LinearWeights],
        replaced: Mapping[str, np.ndarray],
        on_share: OnShare,
    ) -> InputSums:
        """Return the kept sums of linears.

        Raises:
            ConfigError: A tensor is missing or has another shape, or a number cannot be.
            ModelLoadError: The file is damaged.
        """
        sums, file = InputSums(), SafetensorsFile(self._path(layer))
        for linear in linears:
            if f"{linear.modules[0]}.rows" in file.entries:
                sums.put(linear.modules, self._read(file, linear))
        sums.complete()
        on_share(1.0)
        return sums

    def advance(
        self, layer: int, values: Callable[[], Mapping[str, np.ndarray]], on_share: OnShare
    ) -> None:
        """Do nothing: inputs of layers do not depend on how layers before them were quantized."""

    def _read(self, file: SafetensorsFile, linear: LinearWeights) -> LinearSums:
        name, width = linear.modules[0], linear.columns
        (count,) = self._array(file, f"{name}.rows", "I64", (1,)).tolist()
        entry = file.entries.get(f"{name}.sample")
        kept = entry.shape[0] if entry is not None and entry.shape else 0
        if not 0 < count <= 1 << 40 or not 0 < kept <= 4 * SAMPLE_ROWS:
            raise self._refusal(file, f"{name}.rows", f"{count} rows, {kept} of them kept")
        products = np.zeros((width, width))
        for begin in range(0, width, PANEL):
            shape = min(PANEL, width - begin), width - begin
            panel = self._array(file, f"{name}.products.{begin}", "F64", shape)
            products[begin : begin + PANEL, begin:] = panel
        return LinearSums(
            products=products,
            magnitudes=self._array(file, f"{name}.magnitudes", "F64", (width,)),
            squares=self._array(file, f"{name}.squares", "F64", (width,)),
            largest=self._array(file, f"{name}.largest", "F32", (width,)),
            num_rows=count,
            kept=[self._array(file, f"{name}.sample", "F32", (kept, width))],
        )

    def _array(
        self, file: SafetensorsFile, name: str, dtype: str, shape: tuple[int, ...]
    ) -> np.ndarray:
        entry = file.entries.get(name)
        if entry is None or entry.dtype != dtype or tuple(entry.shape) != shape:
            got = "none" if entry is None else f"{entry.dtype} {tuple(entry.shape)}"
            raise self._refusal(file, name, f"{got}, not {dtype} {shape}")
        found = file.array(name).copy()
        if not np.isfinite(found).all():
            raise self._refusal(file, name, "infinity or NaN")
        return found

    def _refusal(self, file: SafetensorsFile, name: str, got: str) -> ConfigError:
        return ConfigError(
            f"[quantize] --statistics must hold sums of all layers; got {name} of {got} in "
            f"{file.path}. Remove the folder, and they are computed again."
        )

    def _path(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:05d}.safetensors"


def source_state(stored: Checkpoint) -> list[list[Any]]:
    """Return what changes when a checkpoint's files do: their names, sizes and times."""
    files = sorted({file.path for file in stored.files.values()})
    states = [(path.name, file_state(path)) for path in files]
    return [[name, *state[2:]] for name, state in states if state is not None]


def samples_digest(samples: Sequence[np.ndarray]) -> str:
    """Return a hash of samples of token ids."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(len(sample).to_bytes(8, "little") + sample.astype(np.int32).tobytes())
    return digest.hexdigest()


def _tensors(sums: InputSums) -> dict[str, TensorData]:
    """Return the sums of a layer as they are stored, before their triangles are completed."""
    found: dict[str, TensorData] = {}
    for modules in sums.sums:
        name, parts = modules[0], sums.get(modules)
        width = len(parts.magnitudes)
        for begin in range(0, width, PANEL):
            panel = parts.products[begin : begin + PANEL, begin:]
            found[f"{name}.products.{begin}"] = tensor_data(panel)
        found[f"{name}.magnitudes"] = tensor_data(parts.magnitudes)
        found[f"{name}.squares"] = tensor_data(parts.squares)
        found[f"{name}.rows"] = tensor_data(np.array([parts.num_rows], np.int64))
        found[f"{name}.largest"] = tensor_data(parts.largest)
        found[f"{name}.sample"] = tensor_data(np.concatenate(parts.kept))
    return dict(sorted(found.items(), key=lambda item: item[1].dtype == "F32"))


def _show(advance: Callable[[float, str], None], layer: int, tokens: int, count: int) -> None:
    advance(count / tokens, f"layer {layer + 1}")
