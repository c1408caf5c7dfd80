"""Quantization of a checkpoint of floats, layer by layer; files are written elsewhere.

T tokens of all calibration samples, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.safetensors_writer import TensorData, tensor_data
from quire.core.errors import ConfigError, UnsupportedArchitectureError
from quire.core.plurals import counted
from quire.kernels.backend import Backend
from quire.kernels.matrices.host_tensor import HostTensor
from quire.models.arranged_tensors import row_orders
from quire.models.loader import open_generating
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.vision.encoder_loader import encoder_names
from quire.models.weight_map import LinearWeights, WeightMap
from quire.quantizing.inputs.input_scales import input_scales
from quire.quantizing.inputs.input_sums import InputSums
from quire.quantizing.inputs.layer_inputs import Bar, LayerInputs, QuantizedPrefix
from quire.quantizing.inputs.statistics import Statistics, samples_digest, source_state
from quire.quantizing.layouts.stored_layout import HEAD_FORMATS
from quire.quantizing.methods import METHODS
from quire.quantizing.quantize_layer import LayerQuantizer, LayerResult
from quire.quantizing.resumable_run import Unfinished, stored_data
from quire.quantizing.scale_layer import LayerScaler
from quire.quantizing.scheme import QuantizationScheme, Recipe
from quire.quantizing.stored_format import StoredFormat

#: Shares of a layer's time: each pass over the samples, and quantizing; for the bar only.
PASS, SOLVE = 0.3, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationJob:
    """The matrices to quantize, and how.

    Attributes:
        recipe: The scheme of each matrix.
        format: The format that matrices are stored in.
        samples: Token ids of each calibration sample, (length,) int32.
        statistics: A folder of sums of the unquantized model's inputs, computed where they are not
            there; None to calibrate each layer on what the quantized ones before it make.
        stated: Entries of ``quantization_config`` that only other programs read.
    """

    recipe: Recipe
    format: StoredFormat
    samples: Sequence[np.ndarray] = ()
    statistics: Path | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run, before it is put together.

    Attributes:
        tensors: Tensors of the whole checkpoint, in order.
        config: ``quantization_config``.
        model_config: Fields of ``config.json`` that differ from the source's.
        schemes: Schemes by module.
        errors: Errors by module, as in :class:`~quire.quantizing.quantize_layer.LayerResult`.
        notices: Lines on what differs from the request.
    """

    tensors: dict[str, TensorData]
    config: dict[str, Any]
    model_config: dict[str, Any]
    schemes: dict[str, QuantizationScheme]
    errors: dict[str, float]
    notices: list[str]


class QuantizationRun:
    """A job on a checkpoint.

    Args:
        folder: The checkpoint.
        job: The matrices to quantize, and how.

    Attributes:
        schemes: Schemes by module.
        notices: Lines on what differs from the request.
        config: ``quantization_config`` of the result.

    Raises:
        ConfigError: The checkpoint is quantized already, or cannot be stored so.
        ModelLoadError: The checkpoint cannot be read.
    """

    def __init__(self, folder: Path, job: QuantizationJob) -> None:
        longest = max(map(len, job.samples), default=None)
        opened = open_generating(folder, "float32", longest)
        if not isinstance(opened.tensors, Checkpoint):
            raise ConfigError(
                f"[quantize] SOURCE must be safetensors of floats; got {folder}, which is "
                f"{'a GGUF file' if folder.is_file() else 'quantized already'}."
            )
        if opened.weights.names.linear_is_transposed:
            raise UnsupportedArchitectureError(
                f"[quantize] no format stores matrices of {opened.config.architecture}, which are "
                "(in, out). Use quire convert, or --quantization at load."
            )
        self._opened, self._stored, self._job = opened, opened.tensors, job
        # The head is one more layer, of one matrix.
        self._linears = [layer_linears(opened.weights, n) for n in range(opened.config.num_layers)]
        self._head = opened.weights.names.head
        if job.recipe.asks_head(self._head):
            check_head(job.format.name, opened.weights)
            self._linears.append([opened.weights.own_head()])
        shapes = {
            module: (rows, linear.columns)
            for linears in self._linears
            for linear in linears
            for module, rows in zip(linear.modules, linear.rows, strict=True)
        }
        job.recipe.check_rules(list(shapes))
        asked = {module: job.recipe.scheme_of(module) for module in shapes}
        chosen = {module: scheme for module, scheme in asked.items() if scheme is not None}
        _check_rotated(chosen, opened)
        told = self._choose_for_head(chosen)
        self.schemes, self.notices = job.format.fit(chosen, shapes)
        self.notices += told
        if not self.schemes:
            raise ConfigError("[quantize] a matrix must be left to quantize; got rules for none.")
        self.calibrates = any(s.asks_inputs for s in self.schemes.values())
        if self.calibrates and not job.samples:
            raise ConfigError(
                "[quantize] such methods need calibration text; got none. Give --calibration FILE."
            )
        self._check_stages()
        floats = [module for module in shapes if module not in self.schemes]
        floats += [*self._routers(), *self._encoder_matrices()]
        self.config = {**job.format.config(self.schemes, floats), **job.stated}
        self._unties = opened.config.tie_word_embeddings and self._head in self.schemes
        if self._unties:
            self.notices.append(
                f"{self._head} is a quantized copy of the embedding, which stays floats: "
                "tie_word_embeddings becomes false"
            )
        left_out = sorted(self._stored.names - set(self._names()))
        if left_out:
            self.notices.append(f"tensors that the model does without are left out: {left_out[0]}")

    def _choose_for_head(self, chosen: dict[str, QuantizationScheme]) -> list[str]:
        """Round a head whose method scales the columns of a layer, and return what to tell."""
        scheme = chosen.get(self._head)
        if scheme is None or not METHODS[scheme.method].scales_columns:
            return []
        other = METHODS[scheme.method].without_inputs
        chosen[self._head] = scheme.changed({"method": other})
        return [f"{self._head} is made by {other}: {scheme.method} scales matrices of layers alone"]

    def _check_stages(self) -> None:
        schemes = self.schemes.values()
        if any(s.true_sequential for s in schemes) and self._job.statistics is not None:
            raise ConfigError(
                "[quantize] --statistics must come without --true-sequential, which calibrates on "
                "quantized matrices; got both."
            )
        if self.calibrates and self._job.statistics is not None:
            self.notices.append(
                "calibrated on the inputs of the unquantized model, which --statistics keeps"
            )
        if any(s.true_sequential for s in schemes) and any(
            METHODS[s.method].scales_columns for s in schemes
        ):
            raise ConfigError(
                "[quantize] --true-sequential must come without methods that scale a whole layer; "
                "got a recipe of both. Leave it out, or give such matrices another method."
            )

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide the bytes of the result."""
        kept = self._job.statistics is not None
        return {
            "source": source_state(self._stored),
            "schemes": {module: asdict(scheme) for module, scheme in self.schemes.items()},
            "config": self.config,
            "samples": samples_digest(self._job.samples),
            **({"inputs": "of the unquantized model"} if kept else {}),
        }

    def execute(self, backend: Backend, unfinished: Unfinished, bar: Bar) -> Result:
        """Quantize the layers that are not done, and return the whole.

        Raises:
            ModelLoadError: A weight is infinite or NaN.
            OSError: The disk is full.
        """
        layers, errors = len(self._linears), dict[str, float]()
        inputs: LayerInputs | None = None
        if self.calibrates and self._job.statistics is not None:
            source = source_state(self._stored)
            kept = Statistics(self._job.statistics, source, self._job.samples)
            kept.collect(self._opened, backend, self._linears, bar)
            inputs = kept
        elif self.calibrates:
            folder = unfinished.folder
            inputs = QuantizedPrefix(self._opened, backend, self._job.samples, folder)
        with bar("quantize", layers) as advance:
            for layer in range(layers):
                step = _Step(self._remark(layer), advance)
                if not unfinished.has(layer):
                    self._quantize(layer, backend.threads, inputs, unfinished, step)
                if inputs is not None and layer + 1 < layers:
                    inputs.advance(layer, partial(unfinished.values, layer), step.part(PASS))
                step.end()
        for layer in range(layers):
            report = unfinished.report(layer)
            errors |= report["errors"]
            self.notices += report["notices"]
        return Result(
            tensors=self._tensors(unfinished),
            config=self.config,
            model_config={"tie_word_embeddings": False} if self._unties else {},
            schemes=self.schemes,
            errors=errors,
            notices=self.notices,
        )

    def _quantize(
        self,
        layer: int,
        threads: int,
        inputs: LayerInputs | None,
        unfinished: Unfinished,
        step: _Step,
    ) -> None:
        opened, linears = self._opened, self._linears[layer]
        modules = [module for linear in linears for module in linear.modules]
        schemes = {m: self.schemes[m] for m in modules if m in self.schemes}
        stages = [linears]
        is_head = layer == opened.config.num_layers
        if not is_head and any(scheme.true_sequential for scheme in schemes.values()):
            stages = in_stages(opened.weights, layer)
        total = sum(sum(linear.rows) * linear.columns for linear in linears)
        solver = LayerQuantizer(schemes, threads, lambda count: step(SOLVE * count / total))
        stored_as = {self._head: opened.weights.head().modules[0]}
        weights: Mapping[str, np.ndarray] = _Weights(self._stored, stored_as)
        tensors, values = dict[str, TensorData](), dict[str, np.ndarray]()
        errors, notices = dict[str, float](), list[str]()
        for stage in stages:
            own = [module for linear in stage for module in linear.modules]
            sums = InputSums()
            if inputs is not None and any(schemes[m].asks_inputs for m in own if m in schemes):
                sums = inputs.sums(layer, stage, values, step.part(PASS / len(stages)))
            if any(METHODS[scheme.method].scales_columns for scheme in schemes.values()):
                matrices = {module: weights[module] for module in schemes}
                scaler = LayerScaler(opened.weights, self._stored, schemes, threads)
                scaled = scaler.scale(layer, matrices, sums)
                weights, tensors = scaled.weights, scaler.stored(scaled)
            result = solver.quantize(stage, weights, sums)
            for module, matrix in result.matrices.items():
                parts = self._job.format.store(matrix, self.schemes[module])
                tensors |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
                if len(stages) > 1:
                    values[f"{module}.weight"] = np.ascontiguousarray(matrix.float32())
            scales, unseen = input_scales(stage, schemes, sums)
            tensors |= {name: tensor_data(scale) for name, scale in scales.items()}
            errors |= result.errors
            notices += _notices(result) + unseen
        report = {"errors": errors, "notices": notices}
        unfinished.write(layer, in_file_order(tensors), self.config, report)

    def _remark(self, layer: int) -> str:
        layers = self._opened.config.num_layers
        return f"layer {layer + 1} of {layers}" if layer < layers else "output head"

    def _routers(self) -> list[str]:
        weights, layers = self._opened.weights, range(self._opened.config.num_layers)
        linears = [linear for layer in layers for linear in weights.unrounded(layer)]
        return [module for linear in linears for module in linear.modules]

    def _names(self) -> list[str]:
        """Return the decoder's tensors, and those of a picture encoder, which stay floats."""
        return [*self._opened.weights.shapes(), *self._encoder_tensors()]

    def _encoder_tensors(self) -> list[str]:
        reads_pictures = self._opened.config.vision is not None
        return sorted(encoder_names(self._stored.names)) if reads_pictures else []

    def _encoder_matrices(self) -> list[str]:
        """Return modules of a picture encoder that other programs would take for quantized ones."""
        shapes = {name: self._stored.tensor(name).shape for name in self._encoder_tensors()}
        matrices = [name for name, shape in shapes.items() if len(shape) == 2]
        return [name.removesuffix(".weight") for name in matrices if name.endswith(".weight")]

    def _tensors(self, unfinished: Unfinished) -> dict[str, TensorData]:
        made: dict[str, TensorData] = {}
        for layer in range(len(self._linears)):
            made |= unfinished.tensors(layer)
        for name in self._names():
            module = name.removesuffix(".weight")
            if name not in made and not (module in self.schemes and name.endswith(".weight")):
                made[name] = stored_data(self._stored, name)
        return in_file_order(made)


class _Step:
    """Moves the bar within a layer's share."""

    def __init__(self, remark: str, advance: Callable[[float, str], None]) -> None:
        self._remark, self._advance, self._done = remark, advance, 0.0

    def __call__(self, amount: float) -> None:
        self._done += amount
        self._advance(amount, self._remark)

    def part(self, whole: float) -> Callable[[float], None]:
        """Return what moves the bar by shares of a whole."""
        return lambda share: self(whole * share)

    def end(self) -> None:
        """Move to the layer's end."""
        self(1 - self._done)


class _Weights(Mapping[str, np.ndarray]):
    """Matrices of a checkpoint as float32, read when they are asked for."""

    def __init__(self, stored: Checkpoint, stored_as: Mapping[str, str]) -> None:
        self._stored, self._stored_as = stored, stored_as

    def __getitem__(self, module: str) -> np.ndarray:
        name = f"{self._stored_as.get(module, module)}.weight"
        tensor = self._stored.tensor(name)
        assert isinstance(tensor, HostTensor), name
        values = np.array(tensor.float32())
        self._stored.release(name)
        return values

    def __iter__(self) -> Iterator[str]:
        return (n.removesuffix(".weight") for n in self._stored.names if n.endswith(".weight"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def layer_linears(weights: WeightMap, layer: int) -> list[LinearWeights]:
    """Return the linears of a layer but a router, in the order of their inputs."""
    mlps = [linear for mlp in weights.mlps(layer) for linear in mlp]
    return [*weights.attention_inputs(layer), weights.attention_output(layer), *mlps]


def check_head(format_name: str, weights: WeightMap) -> None:
    """Refuse to quantize an output head that could not be read or told from the embedding.

    Raises:
        ConfigError: The head cannot be quantized so; the flag is named.
    """
    if format_name not in HEAD_FORMATS:
        raise ConfigError(
            f"[quantize] --quantize-head must come with --format {' or '.join(HEAD_FORMATS)}: "
            f"readers of others take a head of floats; got {format_name}."
        )
    if weights.config.vision is not None:
        raise ConfigError(
            "[quantize] --quantize-head must come with a model of text: formats name a head that "
            f"is the model's own; got {weights.names.head}. Leave it out."
        )
    if weights.names.embedding == weights.names.head:
        raise ConfigError(
            "[quantize] --quantize-head must come with an embedding under its own name; got one "
            f"that is stored as {weights.names.head}.weight alone."
        )


def linear_modules(folder: Path) -> list[str]:
    """Return the names of all matrices of a checkpoint's layers that can be quantized.

    Raises:
        ModelLoadError: The checkpoint cannot be read.
    """
    opened = open_generating(folder, "float32", None)
    layers = range(opened.config.num_layers)
    linears = [linear for layer in layers for linear in layer_linears(opened.weights, layer)]
    return [module for linear in linears for module in linear.modules]


def in_stages(weights: WeightMap, layer: int) -> list[list[LinearWeights]]:
    """Return the linears of a layer in the order in which their inputs are computed.

    Source: AutoGPTQ (``inside_layer_modules`` with ``true_sequential``).
    """
    mlps = weights.mlps(layer)
    return [
        *weights.attention_stages(layer),
        [weights.attention_output(layer)],
        [mlp.gate_up for mlp in mlps],
        [mlp.down for mlp in mlps],
    ]


def in_file_order(tensors: Mapping[str, TensorData]) -> dict[str, TensorData]:
    """Return tensors with large elements first, so that each lies where its type wants it."""
    sizes = {"I64": 8, "I32": 4, "F32": 4, "F16": 2, "BF16": 2, "I16": 2}
    return dict(sorted(tensors.items(), key=lambda item: (-sizes.get(item[1].dtype, 1), item[0])))


def _notices(result: LayerResult) -> list[str]:
    return [
        f"{module} saw {counted(seen, 'input')} and is rounded to nearest"
        for module, seen in result.too_few.items()
    ]


def _check_rotated(schemes: Mapping[str, QuantizationScheme], opened: OpenedCheckpoint) -> None:
    """Refuse rotated matrices whose rows a loader would have to put in another order."""
    for module in row_orders(opened.tensors, opened.weights):
        if module in schemes and schemes[module].method == "quip":
            raise ConfigError(
                f"[quantize] --method quip rotates outputs together, and those of {module} are "
                "loaded in another order. Leave such matrices out with --skip, or use another "
                "method."
            )
