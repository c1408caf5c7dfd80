"""Outputs of the last layers for the driver: from its own part, or from the last stage.

L rows whose logits are wanted, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.batch.forward_batch import BatchRows, ForwardBatch
from quire.kernels.low_rank import row_adapters
from quire.kernels.packed_weights import PackedWeights
from quire.layers.residual_capture import ResidualCapture
from quire.models.decoder import Capture, Decoder, HiddenStates
from quire.models.stage import receive
from quire.runner.memory.model_part import ModelPart
from quire.runner.ranks.commands import Announce, Logits, Lookup, Multiply


class Outputs(Protocol):
    """The outputs of a step that the driver has announced."""

    @property
    def head(self) -> Linear:
        """The head, which multiplies states outside of steps."""
        ...

    def capture(self, wanted: ResidualCapture) -> Capture:
        """Return the capture of the inputs of the driver's own layers."""
        ...

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: Capture | None
    ) -> HiddenStates:
        """Return the states of a step whose part here is done; they may arrive later."""
        ...

    def logits(self, hidden: HiddenStates) -> Array:
        """Return logits (L, V) of states of a step."""
        ...

    def close(self) -> None:
        """End the thread, if there is one."""
        ...


class StageOutputs:
    """Outputs of a driver that is of the last stage; see :class:`Outputs`."""

    def __init__(self, decoder: Decoder, announce: Announce) -> None:
        self._decoder, self._announce = decoder, announce
        self.head: Linear = DriverLinear(decoder.head, decoder.backend, announce)

    def capture(self, wanted: ResidualCapture) -> Capture:
        """Return ``wanted`` itself."""
        return wanted

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: Capture | None
    ) -> HiddenStates:
        """Return the driver's own states."""
        return own

    def logits(self, hidden: HiddenStates) -> Array:
        """Compute the driver's part of the logits and gather the others'."""
        self._announce(Logits(hidden.first, len(hidden)))
        return self._decoder.logits(hidden)

    def close(self) -> None:
        """Do nothing."""


class DriverLinear:
    """Embedding or head that each rank has a part of, for products outside of steps."""

    def __init__(self, linear: Linear, backend: Backend, announce: Announce) -> None:
        self._linear, self._backend, self._announce = linear, backend, announce
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.nbytes = linear.nbytes
        self.packed: Sequence[PackedWeights] = ()  # one rank's weights are not the whole

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (L, D) to (L, V)."""
        self._announce(multiply_command(self._backend, x, rows))
        return self._linear(x, out, rows)

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return rows of the embedding."""
        self._announce(Lookup(self._backend.to_numpy(ids)))
        return self._linear.lookup(ids, out, rows)


def multiply_command(backend: Backend, states: Array, rows: BatchRows | None) -> Multiply:
    """Return the command to multiply states (L, D) of some rows with the head."""
    adapters = None
    if rows is not None and rows.batch.adapters is not None:
        adapters = np.ascontiguousarray(row_adapters(rows, backend.to_numpy))
    return Multiply(backend.to_numpy(states), adapters)


class OwnCapture:
    """Copies of the inputs of the driver's layers: the next step may begin before they are read.

    Args:
        wanted: The capture that gets all rows once those of the other stages have arrived.
    """

    def __init__(self, wanted: ResidualCapture) -> None:
        self.wanted = wanted
        self.rows: dict[int, Array] = {}

    def keep(self, layer: int, residual: Array) -> None:
        """Keep a copy of (T, D), if the layer is captured."""
        if layer in self.wanted.layers:
            self.rows[layer] = residual.copy()

    def settle(self) -> None:
        """Give all rows to ``wanted``; steps are read in their order."""
        for layer in self.wanted.layers:
            self.wanted.keep(layer, self.rows[layer])


@dataclass(slots=True)
class SentStep:
    """The last stage's outputs of one step.

    Attributes:
        states: (L, D).
        logits: Logits of the first rows, which tokens are drawn from.
        capture: Captured inputs of layers, until they are given to their reader; None for none.
    """

    states: Array
    logits: Array
    capture: OwnCapture | None


@dataclass(slots=True)
class DrawnStates(HiddenStates):
    """Hidden states that arrived with their logits."""

    logits: Array | None = None


class AwaitedStates(HiddenStates):
    """Hidden states that are waited for when they are read."""

    def __init__(self, step: Future[SentStep], batch: ForwardBatch) -> None:
        self.rows, self.first = BatchRows(batch, batch.logits_indices), 0
        self._step = step

    @property
    def states(self) -> Array:
        """(L, D), once they have arrived."""
        step = self._step.result()
        if step.capture is not None:
            step.capture.settle()
            step.capture = None
        return step.states

    def __getitem__(self, part: slice) -> HiddenStates:
        """Return some of the rows, as views."""
        found, num_drawn = super().__getitem__(part), self.rows.batch.num_drawn
        if found.first == 0 and len(found) == num_drawn:
            return DrawnStates(found.states, found.rows, logits=self._step.result().logits)
        return found


class SentOutputs:
    """Outputs that the last stage sends and a thread receives; see :class:`Outputs`.

    Without the thread the last stage would wait until the driver has time to receive, and the
    driver, which sends rows to the next stage, would wait for that stage in turn.
    """

    def __init__(self, decoder: Decoder, part: ModelPart, announce: Announce) -> None:
        self._backend, self._part, self._announce = decoder.backend, part, announce
        self._layers, self._config = decoder.stage.layers, decoder.config
        self._thread = ThreadPoolExecutor(1, "quire-outputs")
        self.head: Linear = SentLinear(decoder, self)

    def capture(self, wanted: ResidualCapture) -> Capture:
        """Return a capture that copies."""
        return OwnCapture(wanted)

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: Capture | None
    ) -> HiddenStates:
        """Let the thread receive the step's outputs."""
        assert capture is None or isinstance(capture, OwnCapture)
        return AwaitedStates(self._thread.submit(self._take_step, batch, capture), batch)

    def _take_step(self, batch: ForwardBatch, capture: OwnCapture | None) -> SentStep:
        """Receive captured rows in the order of layers, then states, then logits."""
        size = self._config.hidden_size
        for layer in () if capture is None else capture.wanted.layers:
            if layer not in self._layers:
                sender = self._part.sender_of(layer, self._config.num_layers)
                rows = self._backend.empty(
                    (batch.input_ids.shape[0], size), self._backend.activation_dtype
                )
                assert capture is not None
                capture.rows[layer] = receive(self._backend, self._part.world, sender, rows)
        states = self._take(batch.logits_indices.shape[0], size, self._backend.activation_dtype)
        logits = self._take(batch.num_drawn, self._config.vocab_size, "float32")
        return SentStep(states, logits, capture)

    def _take(self, num_rows: int, width: int, dtype: str) -> Array:
        out = self._backend.empty((num_rows, width), dtype)
        if not num_rows:
            return out
        return receive(self._backend, self._part.world, self._part.output_rank, out)

    def logits(self, hidden: HiddenStates) -> Array:
        """Return the logits that arrived with the step, or ask the last stage for others."""
        if isinstance(hidden, DrawnStates) and hidden.logits is not None:
            return hidden.logits
        return self.multiply(hidden.states, hidden.rows)

    def multiply(self, states: Array, rows: BatchRows | None) -> Array:
        """Let the last stage multiply states (L, D) of some rows with the head; return (L, V)."""
        self._announce(multiply_command(self._backend, states, rows))
        num_rows, width = states.shape[0], self._config.vocab_size
        return self._thread.submit(self._take, num_rows, width, "float32").result()

    def close(self) -> None:
        """End the thread; the messages that it waits for have failed by then."""
        self._thread.shutdown(wait=False)


class SentLinear:
    """The output head of the last stage, whose products it sends."""

    packed: Sequence[PackedWeights] = ()
    nbytes = 0

    def __init__(self, decoder: Decoder, outputs: SentOutputs) -> None:
        self._outputs = outputs
        self.in_features = decoder.config.hidden_size
        self.out_features = decoder.config.vocab_size

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (T, D) to (T, V)."""
        made = self._outputs.multiply(x, rows)
        if out is None:
            return made
        out[...] = made
        return out

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Refuse: ids are looked up in the embedding's stage."""
        raise NotImplementedError("the output head of a later stage looks nothing up")
