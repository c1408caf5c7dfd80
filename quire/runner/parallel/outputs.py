"""Where the driver gets what the last layers make: of its own part, or from the last stage.

L rows whose logits are wanted, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np

from quire.kernels.backend import Array, Linear
from quire.kernels.forward_batch import BatchRows, ForwardBatch
from quire.kernels.low_rank import row_adapters
from quire.kernels.packed_weights import PackedWeights
from quire.layers.residual_capture import ResidualCapture
from quire.models.decoder import Capture, Decoder, HiddenStates
from quire.models.stage import receive
from quire.runner.model_part import ModelPart
from quire.runner.parallel.commands import Announce, Logits, Multiply


class Outputs(Protocol):
    """What a step brings, when the driver has told it."""

    @property
    def head(self) -> Linear:
        """Multiplies states that the last stage was told of."""
        ...

    def num_drawn(self, batch: ForwardBatch) -> int:
        """Return how many rows of logits come with the step, without being asked for."""
        ...

    def capture(self, wanted: ResidualCapture | None) -> Capture | None:
        """Return what keeps what enters the driver's own layers."""
        ...

    def hidden(
        self,
        own: HiddenStates,
        batch: ForwardBatch,
        wanted: ResidualCapture | None,
        kept: Capture | None,
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

    @property
    def head(self) -> Linear:
        """This rank's part."""
        return self._decoder.head

    def num_drawn(self, batch: ForwardBatch) -> int:
        """None: all are asked for."""
        return 0

    def capture(self, wanted: ResidualCapture | None) -> Capture | None:
        """Return itself."""
        return wanted

    def hidden(
        self,
        own: HiddenStates,
        batch: ForwardBatch,
        wanted: ResidualCapture | None,
        kept: Capture | None,
    ) -> HiddenStates:
        """Return its own."""
        return own

    def logits(self, hidden: HiddenStates) -> Array:
        """Compute its own part and take the others'."""
        self._announce(Logits(hidden.first, len(hidden)))
        return self._decoder.logits(hidden)

    def close(self) -> None:
        """There is nothing."""


class OwnCapture:
    """Copies of what enters the driver's layers: the next step may begin before they are read."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = layers
        self.rows: dict[int, Array] = {}

    def keep(self, layer: int, residual: Array) -> None:
        """Keep a copy of (T, D), if the layer is one of those."""
        if layer in self._layers:
            self.rows[layer] = residual.copy()


class SentStep:
    """What the last stage sends of one step, and what enters layers of others.

    Attributes:
        states: (L, D).
        logits: Of the rows that tokens are drawn from.
        captured: (T, D) by layer.
    """

    def __init__(self, states: Array, logits: Array, captured: dict[int, Array]) -> None:
        self.states, self.logits, self.captured = states, logits, captured


class AwaitedStates(HiddenStates):
    """Hidden states that are waited for when they are read.

    Args:
        step: They come with.
        batch: Whose rows they are.
        wanted: Is given what was captured when they are there; steps are read in their order.
    """

    def __init__(
        self, step: Future[SentStep], batch: ForwardBatch, wanted: ResidualCapture | None
    ) -> None:
        self.rows, self.first = BatchRows(batch, batch.logits_indices), 0
        self._step, self._wanted = step, wanted

    @property
    def states(self) -> Array:
        """(L, D)."""
        step, wanted = self._step.result(), self._wanted
        if wanted is not None:
            self._wanted = None
            for layer in wanted.layers:
                wanted.keep(layer, step.captured[layer])
        return step.states


class SentOutputs:
    """The last stage sends them, and a thread takes them; see :class:`Outputs`.

    Without the thread the last stage could not go on before the driver has time for it, and the
    driver, which hands rows to the next stage, not before that one goes on.
    """

    def __init__(self, decoder: Decoder, part: ModelPart, announce: Announce) -> None:
        self._backend, self._part, self._announce = decoder.backend, part, announce
        self._layers, self._config = decoder.stage.layers, decoder.config
        self._thread = ThreadPoolExecutor(1, "quire-outputs")
        self._steps: dict[int, Future[SentStep]] = {}  # by their batch, until logits are read
        self.head: Linear = SentLinear(decoder, self)

    def num_drawn(self, batch: ForwardBatch) -> int:
        """All that tokens are drawn from."""
        return batch.num_drawn

    def capture(self, wanted: ResidualCapture | None) -> Capture | None:
        """Return what copies."""
        return None if wanted is None else OwnCapture(wanted.layers)

    def hidden(
        self,
        own: HiddenStates,
        batch: ForwardBatch,
        wanted: ResidualCapture | None,
        kept: Capture | None,
    ) -> HiddenStates:
        """Have the thread take them."""
        captured = kept.rows if isinstance(kept, OwnCapture) else {}
        layers = () if wanted is None else wanted.layers
        step = self._thread.submit(self._take_step, batch, layers, captured)
        if batch.num_drawn:
            self._steps[id(batch)] = step
        return AwaitedStates(step, batch, wanted)

    def _take_step(
        self, batch: ForwardBatch, layers: Sequence[int], captured: dict[int, Array]
    ) -> SentStep:
        """Take what was captured, in the order of layers, then states, then logits."""
        num_rows, size = batch.input_ids.shape[0], self._config.hidden_size
        for layer in layers:
            if layer not in self._layers:
                sender = self._part.sender_of(layer, self._config.num_layers)
                captured[layer] = self._take((num_rows, size), sender)
        states = self._take((batch.logits_indices.shape[0], size))
        logits = self._take((batch.num_drawn, self._config.vocab_size), dtype="float32")
        return SentStep(states, logits, captured)

    def _take(
        self, shape: tuple[int, int], sender: int | None = None, dtype: str | None = None
    ) -> Array:
        out = self._backend.empty(shape, dtype or self._backend.activation_dtype)
        if not shape[0]:
            return out
        rank = self._part.output_rank if sender is None else sender
        return receive(self._backend, self._part.world, rank, out)

    def logits(self, hidden: HiddenStates) -> Array:
        """Return those that came with the step; others are asked for."""
        batch = hidden.rows.batch
        step = self._steps.pop(id(batch), None)
        if step is not None and hidden.first == 0 and len(hidden) == batch.num_drawn:
            return step.result().logits
        if step is not None:
            self._steps[id(batch)] = step
        return self.multiply(hidden.states, hidden.rows)

    def multiply(self, states: Array, rows: BatchRows | None) -> Array:
        """Have the last stage multiply states (L, D), those of some rows, with the head; (L, V)."""
        to_numpy, adapters = self._backend.to_numpy, None
        if rows is not None and rows.batch.adapters is not None:
            adapters = np.ascontiguousarray(row_adapters(rows, to_numpy))
        self._announce(Multiply(to_numpy(states), adapters))
        shape = (states.shape[0], self._config.vocab_size)
        return self._thread.submit(partial(self._take, shape, dtype="float32")).result()

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
