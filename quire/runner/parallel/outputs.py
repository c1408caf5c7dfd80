"""Where the driver gets what the last layers make: of its own part, or from the last stage.

L rows whose logits are wanted, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.forward_batch import BatchRows, ForwardBatch
from quire.kernels.low_rank import row_adapters
from quire.kernels.packed_weights import PackedWeights
from quire.layers.residual_capture import ResidualCapture
from quire.models.decoder import Capture, Decoder, HiddenStates
from quire.models.stage import receive
from quire.runner.model_part import ModelPart
from quire.runner.parallel.commands import Announce, Logits, Lookup, Multiply


class Outputs(Protocol):
    """What a step brings, when the driver has told it."""

    @property
    def head(self) -> Linear:
        """Multiplies states outside of steps."""
        ...

    def capture(self, wanted: ResidualCapture) -> Capture:
        """Return what keeps what enters the driver's own layers."""
        ...

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: Capture | None
    ) -> HiddenStates:
        """Return the states of a step whose part here is done; they may come later."""
        ...

    def logits(self, hidden: HiddenStates) -> Array:
        """Return logits (L, V) of states of a step."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class StageOutputs:
    """The driver is of the last stage; see :class:`Outputs`."""

    def __init__(self, decoder: Decoder, announce: Announce) -> None:
        self._decoder, self._announce = decoder, announce
        self.head: Linear = LeadLinear(decoder.head, decoder.backend, announce)

    def capture(self, wanted: ResidualCapture) -> Capture:
        """Return itself."""
        return wanted

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: Capture | None
    ) -> HiddenStates:
        """Return its own."""
        return own

    def logits(self, hidden: HiddenStates) -> Array:
        """Compute its own part and take the others'."""
        self._announce(Logits(hidden.first, len(hidden)))
        return self._decoder.logits(hidden)

    def close(self) -> None:
        """There is nothing."""


class LeadLinear:
    """Embedding or head, of which each rank has a part; for what is computed outside of steps."""

    def __init__(self, linear: Linear, backend: Backend, announce: Announce) -> None:
        self._linear, self._backend, self._announce = linear, backend, announce
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.nbytes = linear.nbytes
        self.packed: Sequence[PackedWeights] = ()  # of one rank they are not the whole

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (L, D) to (L, V)."""
        self._announce(multiply_command(self._backend, x, rows))
        return self._linear(x, out, rows)

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return rows of the embedding."""
        self._announce(Lookup(self._backend.to_numpy(ids)))
        return self._linear.lookup(ids, out, rows)


def multiply_command(backend: Backend, states: Array, rows: BatchRows | None) -> Multiply:
    """Return what tells ranks to multiply states (L, D), those of some rows, with the head."""
    adapters = None
    if rows is not None and rows.batch.adapters is not None:
        adapters = np.ascontiguousarray(row_adapters(rows, backend.to_numpy))
    return Multiply(backend.to_numpy(states), adapters)


class OwnCapture:
    """Copies of what enters the driver's layers: the next step may begin before they are read.

    Args:
        wanted: Gets all rows, when the other stages' are there.
    """

    def __init__(self, wanted: ResidualCapture) -> None:
        self.wanted = wanted
        self.rows: dict[int, Array] = {}

    def keep(self, layer: int, residual: Array) -> None:
        """Keep a copy of (T, D), if the layer is one of those."""
        if layer in self.wanted.layers:
            self.rows[layer] = residual.copy()

    def settle(self) -> None:
        """Hand all rows on; steps are read in their order."""
        for layer in self.wanted.layers:
            self.wanted.keep(layer, self.rows[layer])


@dataclass(slots=True)
class SentStep:
    """What the last stage sends of one step.

    Attributes:
        states: (L, D).
        logits: Of the first rows, those that tokens are drawn from.
        capture: What entered layers, until it is handed on.
    """

    states: Array
    logits: Array
    capture: OwnCapture | None


@dataclass(slots=True)
class DrawnStates(HiddenStates):
    """Hidden states whose logits came with them."""

    logits: Array | None = None


class AwaitedStates(HiddenStates):
    """Hidden states that are waited for when they are read."""

    def __init__(self, step: Future[SentStep], batch: ForwardBatch) -> None:
        self.rows, self.first = BatchRows(batch, batch.logits_indices), 0
        self._step = step

    @property
    def states(self) -> Array:
        """(L, D)."""
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
    """The last stage sends them, and a thread takes them; see :class:`Outputs`.

    Without the thread the last stage could not go on before the driver has time for it, and the
    driver, which hands rows to the next stage, not before that one goes on.
    """

    def __init__(self, decoder: Decoder, part: ModelPart, announce: Announce) -> None:
        self._backend, self._part, self._announce = decoder.backend, part, announce
        self._layers, self._config = decoder.stage.layers, decoder.config
        self._thread = ThreadPoolExecutor(1, "quire-outputs")
        self.head: Linear = SentLinear(decoder, self)

    def capture(self, wanted: ResidualCapture) -> Capture:
        """Return what copies."""
        return OwnCapture(wanted)

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: Capture | None
    ) -> HiddenStates:
        """Have the thread take them."""
        assert capture is None or isinstance(capture, OwnCapture)
        return AwaitedStates(self._thread.submit(self._take_step, batch, capture), batch)

    def _take_step(self, batch: ForwardBatch, capture: OwnCapture | None) -> SentStep:
        """Take what was captured, in the order of layers, then states, then logits."""
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
        """Return those that came with the step; others are asked for."""
        if isinstance(hidden, DrawnStates) and hidden.logits is not None:
            return hidden.logits
        return self.multiply(hidden.states, hidden.rows)

    def multiply(self, states: Array, rows: BatchRows | None) -> Array:
        """Have the last stage multiply states (L, D), those of some rows, with the head; (L, V)."""
        self._announce(multiply_command(self._backend, states, rows))
        num_rows, width = states.shape[0], self._config.vocab_size
        return self._thread.submit(self._take, num_rows, width, "float32").result()

    def close(self) -> None:
        """End the thread; what it waits for has failed by then."""
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
        """Ids are looked up where the embedding is."""
        raise NotImplementedError("the output head of a later stage looks nothing up")
