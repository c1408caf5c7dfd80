"""Sources of the sums of a layer's inputs: what the layers before it make of the text.

T tokens of all samples, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np

from quire.kernels.backend import Backend
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.weight_map import LinearWeights
from quire.quantizing.inputs.input_sums import InputSums
from quire.quantizing.inputs.layer_runner import LayerRunner

#: States of all samples that are held in memory; more lie in a file of the output folder.
STATES_BYTES = 2 << 30
#: Takes the share of a pass over the text that is done.
OnShare = Callable[[float], None]
#: Opens a bar of (what is done, in all) and returns what moves it, with a remark.
Bar = Callable[[str, float], AbstractContextManager[Callable[[float, str], None]]]


class LayerInputs(Protocol):
    """The sums of layers' inputs, asked for in the layers' order."""

    def sums(
        self,
        layer: int,
        linears: Sequence[LinearWeights],
        replaced: Mapping[str, np.ndarray],
        on_share: OnShare,
    ) -> InputSums:
        """Return the sums of linears' inputs, the caller's to change.

        Args:
            layer: Index of the layer.
            linears: The layer's linears.
            replaced: Float32 values of the layer's tensors that are quantized already.
            on_share: A function called with the progress.
        """
        ...

    def advance(
        self, layer: int, values: Callable[[], Mapping[str, np.ndarray]], on_share: OnShare
    ) -> None:
        """Advance to the next layer.

        Args:
            layer: Index of the layer that is done.
            values: A function that returns the float32 values that the layer has now.
            on_share: A function called with the progress.
        """
        ...


class QuantizedPrefix:
    """Inputs that the quantized layers before a layer make of the text; see :class:`LayerInputs`.

    Args:
        opened: The checkpoint of floats.
        backend: The backend that computes.
        samples: Token ids, (length,) int32 each.
        folder: A folder for a file of states, where they are large.
    """

    def __init__(
        self,
        opened: OpenedCheckpoint,
        backend: Backend,
        samples: Sequence[np.ndarray],
        folder: Path,
    ) -> None:
        self._weights = opened.weights
        self._runner = LayerRunner(opened, backend, samples)
        self._states = create_states(
            (self._runner.num_tokens, opened.config.hidden_size), folder / "states.bin"
        )
        self._runner.embed(self._states)

    def sums(
        self,
        layer: int,
        linears: Sequence[LinearWeights],
        replaced: Mapping[str, np.ndarray],
        on_share: OnShare,
    ) -> InputSums:
        """Compute the layer as it is so far, and sum what the linears are given."""
        tokens = self._runner.num_tokens
        sums, wanted = InputSums(tokens), {linear.modules for linear in linears}

        def observe(modules: tuple[str, ...], inputs: np.ndarray) -> None:
            if modules in wanted:
                sums.add(modules, inputs)

        self._runner.run(
            layer,
            self._states,
            replaced,
            observe,
            keep=False,
            feeds=not wanted <= {own.modules for own in self._weights.attention_inputs(layer)},
            on_tokens=lambda count: on_share(count / tokens),
        )
        sums.complete()
        return sums

    def advance(
        self, layer: int, values: Callable[[], Mapping[str, np.ndarray]], on_share: OnShare
    ) -> None:
        """Compute the layer with the values that it has now."""
        tokens = self._runner.num_tokens
        self._runner.run(
            layer, self._states, values(), on_tokens=lambda count: on_share(count / tokens)
        )


def create_states(shape: tuple[int, int], path: Path) -> np.ndarray:
    """Return room for states (T, D) float32, in a file where they are large."""
    if 4 * shape[0] * shape[1] <= STATES_BYTES:
        return np.empty(shape, np.float32)
    return np.memmap(path, np.float32, "w+", shape=shape)
