"""Where the driver gets what the last layers make: of its own part, or from the last stage.

L rows whose logits are wanted, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.kernels.backend import Array, Linear
from quire.kernels.forward_batch import BatchRows, ForwardBatch
from quire.kernels.packed_weights import PackedWeights
from quire.layers.residual_capture import ResidualCapture
from quire.models.decoder import Decoder, HiddenStates
from quire.models.stage import receive
from quire.runner.model_part import ModelPart


class Outputs(Protocol):
    """What a step brings, when the driver has told it and done its own part."""

    @property
    def head(self) -> Linear:
        """Multiplies states that the last stage was told of."""
        ...

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: ResidualCapture | None
    ) -> HiddenStates:
        """Return the hidden states of a step; what other stages capture is kept."""
        ...

    def logits(self, hidden: HiddenStates) -> Array:
        """Return logits (L, V) that the last stage was told to compute."""
        ...


class StageOutputs:
    """The driver is of the last stage; see :class:`Outputs`."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @property
    def head(self) -> Linear:
        """This rank's part."""
        return self._decoder.head

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: ResidualCapture | None
    ) -> HiddenStates:
        """Return its own."""
        return own

    def logits(self, hidden: HiddenStates) -> Array:
        """Compute its own part and take the others'."""
        return self._decoder.logits(hidden)


class SentOutputs:
    """The last stage sends them; see :class:`Outputs`."""

    def __init__(self, decoder: Decoder, part: ModelPart) -> None:
        self._backend, self._part = decoder.backend, part
        self._layers, self._config = decoder.stage.layers, decoder.config
        self.head: Linear = SentLinear(decoder, part)

    def hidden(
        self, own: HiddenStates, batch: ForwardBatch, capture: ResidualCapture | None
    ) -> HiddenStates:
        """Take what was captured, in the order of layers, then the states."""
        config, world = self._config, self._part.world
        if capture is not None:
            for layer in sorted(set(capture.layers).difference(self._layers)):
                rows = self._empty(batch.input_ids.shape[0], config.hidden_size)
                sender = self._part.sender_of(layer, config.num_layers)
                capture.keep(layer, receive(self._backend, world, sender, rows))
        states = self._empty(batch.logits_indices.shape[0], config.hidden_size)
        if len(states):
            receive(self._backend, world, self._part.output_rank, states)
        return HiddenStates(states, BatchRows(batch, batch.logits_indices))

    def logits(self, hidden: HiddenStates) -> Array:
        """Take them."""
        return self.head(hidden.states)

    def _empty(self, num_rows: int, width: int) -> Array:
        return self._backend.empty((num_rows, width), self._backend.activation_dtype)


class SentLinear:
    """The output head of the last stage, whose products it sends."""

    packed: Sequence[PackedWeights] = ()
    nbytes = 0

    def __init__(self, decoder: Decoder, part: ModelPart) -> None:
        self._backend, self._part = decoder.backend, part
        self.in_features = decoder.config.hidden_size
        self.out_features = decoder.config.vocab_size

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Take (T, V), what became of states that the last stage has."""
        if out is None:
            out = self._backend.empty((x.shape[0], self.out_features))
        if not len(out):
            return out
        return receive(self._backend, self._part.world, self._part.output_rank, out)

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Ids are looked up where the embedding is."""
        raise NotImplementedError("the output head of a later stage looks nothing up")
