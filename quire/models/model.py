"""The model that a runner computes with: a decoder, or one rank's part of a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import Array, Backend, KVCache, Linear
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.layers.residual_capture import ResidualCapture
from quire.layers.state_head import StateHead
from quire.models.decoder import HiddenStates
from quire.models.shared_weights import SharedWeights


class Model(Protocol):
    """See :class:`quire.models.decoder.Decoder`, which is one, for the attributes."""

    config: ModelConfig
    backend: Backend
    max_model_len: int
    weight_bytes: int
    held: SharedWeights

    @property
    def embedding(self) -> Linear: ...

    @property
    def head(self) -> Linear: ...

    @property
    def state_head(self) -> StateHead: ...

    def reserve(self, max_tokens: int, max_logits_rows: int = 0) -> None: ...

    def forward(
        self,
        batch: ForwardBatch,
        kv_cache: KVCache,
        between_layers: Callable[[], None] | None = None,
        capture: ResidualCapture | None = None,
    ) -> HiddenStates: ...

    def logits(self, hidden: HiddenStates) -> Array: ...
