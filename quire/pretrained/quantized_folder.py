"""A folder that settings of quantization are carried out in: made for a while, or to be kept."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.errors import ConfigError
from quire.llm.stage_bar import stage_bar
from quire.models.config.config_reader import read_model_config
from quire.pretrained.quantization_configs import HEADS, QuantizationRequest
from quire.quantizing.inputs.calibration import calibration_samples
from quire.quantizing.quantization_run import QuantizationJob, linear_modules
from quire.quantizing.quantize_checkpoint import Order, quantize_checkpoint
from quire.quantizing.scheme import Recipe, skip_rules
from quire.quantizing.stored_format import FORMATS
from quire.system.log import get_logger

log = get_logger(__name__)


class TemporaryFolder:
    """A folder that goes away with this object, or with the process.

    ``TMPDIR`` says on which disk; it takes the size of the result, twice while it is put together.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="quire-quantized-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        self._end()


def quantized_folder(
    where: str, folder: Path, asked: QuantizationRequest, command: str, threads: int | None
) -> TemporaryFolder:
    """Quantize a checkpoint into a temporary folder.

    Args:
        where: The function, for messages.
        folder: Safetensors of floats.
        asked: The quantization to do.
        command: The command that the card names.
        threads: Number of threads; None for all cores.

    Raises:
        ConfigError: The settings do not fit the checkpoint.
        ModelLoadError: The checkpoint cannot be read.
    """
    if folder.is_file():
        raise ConfigError(f"[{where}] only a folder of floats can be quantized; got file {folder}.")
    recipe = Recipe(asked.scheme, skip_rules(_floats(where, folder, asked)))
    samples, text = _samples(where, folder, asked) if recipe.uses_inputs else ([], "")
    order = Order(
        job=QuantizationJob(
            recipe=recipe, format=FORMATS[asked.format], samples=samples, stated=asked.stated
        ),
        source=str(folder),
        command=command,
        language="python",
        calibration=text,
        threads=threads,
    )
    made = TemporaryFolder()
    try:
        quantize_checkpoint(folder, made.path, order, stage_bar, _tell)
    except BaseException:
        made.close()
        raise
    return made


def _tell(notice: str) -> None:
    log.warning("%s", notice)


def _floats(where: str, folder: Path, asked: QuantizationRequest) -> list[str]:
    """Return the names of the matrices that stay floats.

    A part fits a name that it begins or ends. Source: transformers (should_convert_module).
    """
    modules = linear_modules(folder)
    kept: dict[str, None] = {}
    for part in asked.skipped:
        found = [name for name in modules if name.startswith(part) or name.endswith(part)]
        found += [name for name in modules if f".{part}." in name]
        if not found and part not in HEADS:
            raise ConfigError(
                f"[{where}] a name to skip must fit a matrix of the model; got {part}. Names are "
                f"such as {modules[0]}."
            )
        kept |= dict.fromkeys(found)
    if asked.only is not None:
        _check_ends(where, modules, asked.only)
        ends = tuple(f".{name}" for name in asked.only)
        kept |= dict.fromkeys(name for name in modules if not name.endswith(ends))
    return list(kept)


def _check_ends(where: str, modules: Sequence[str], only: Iterable[str]) -> None:
    for name in only:
        if not any(module.endswith(f".{name}") for module in modules):
            raise ConfigError(
                f"[{where}] modules_in_block_to_quantize must name matrices of the model; got "
                f"{name}. Names are such as {modules[0]}."
            )


def _samples(where: str, folder: Path, asked: QuantizationRequest) -> tuple[list[np.ndarray], str]:
    if asked.examples is None:
        samples, text = calibration_samples(folder, asked.calibration, _tell)
    else:
        samples = [np.array(ids, np.int64) for ids in asked.examples]
        text = f"{len(samples)} samples given as tokens"
    size = read_model_config(folder).vocab_size
    for sample in samples:
        if sample.min() < 0 or sample.max() >= size:
            raise ConfigError(
                f"[{where}] token ids must be of the vocabulary (0 to {size - 1}); got "
                f"{sample.min()} to {sample.max()}. Use the model's tokenizer."
            )
    return [sample.astype(np.int32) for sample in samples], text


def tokens_of(where: str, example: Any) -> list[int]:
    """Return the token ids of an example: ids, or a mapping with ``input_ids``; masked ones go.

    Raises:
        ConfigError: The example has no token ids.
    """
    ids, mask = example, None
    if hasattr(example, "keys"):
        ids, mask = example["input_ids"], example.get("attention_mask")
    ids = _flat(ids)
    if mask is not None:
        ids = [token for token, is_read in zip(ids, _flat(mask), strict=True) if is_read]
    if len(ids) < 2 or not all(isinstance(token, int) and abs(token) < 1 << 31 for token in ids):
        raise ConfigError(
            f"[{where}] an example must have 2 token ids or more, each of 32 bits; got "
            f"{example!r:.80}."
        )
    return ids


def _flat(values: Any) -> list[Any]:
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    return list(found[0]) if found and isinstance(found[0], list) else found
