"""A checkpoint as a decoder that computes, and the memory it needs; it runs no steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import Backend
from quire.models.decoder import Decoder
from quire.models.loader import load_opened, open_checkpoint
from quire.models.model_builder import Progress
from quire.models.shards.rank_weights import RankPart
from quire.models.stage import Stage
from quire.models.vision.encoder_loader import expected_encoder_bytes, load_encoder
from quire.models.weight_bytes import expected_weight_bytes
from quire.planner.memory_budget import MemoryDemand
from quire.planner.parallel_costs import SplitShape, buffer_bytes
from quire.quantization.quantization_plan import create_plan
from quire.runner.memory.memory_plan import model_demand
from quire.runner.memory.model_part import ModelPart, RankPlace
from quire.runner.memory.picture_memory import kept_bytes
from quire.runner.step.picture_encoding import PictureRows
from quire.settings.parallel_layout import ParallelLayout
from quire.settings.resolve import ResolvedConfig
from quire.system.log import get_logger

log = get_logger(__name__)

#: Returns the bytes of buffers for messages between processes in a step of some tokens.
Buffers: TypeAlias = Callable[[SplitShape, int], int]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to compute.

    Attributes:
        decoder: The model's weights, on a backend.
        config: The decoder's shape, its dtype resolved, with all end-of-sequence ids.
        demand: Bytes of the model, and the blocks of its KV cache.
        pictures: Encoder and rows of pictures, or None.
    """

    decoder: Decoder
    config: ModelConfig
    demand: MemoryDemand
    pictures: PictureRows | None = None


def expected_demand(
    folder: Path,
    backend: Backend,
    model_config: ModelConfig,
    resolved: ResolvedConfig,
    part: RankPlace | None = None,
) -> MemoryDemand:
    """Return the memory that a checkpoint, or a rank's part, will need; no weights are read."""
    share = None if part is None else part.share
    layers = None if part is None else part.layers(model_config.num_layers)
    is_first = part is None or part.rank == 0
    demand = _expected(folder, backend, model_config, resolved, share, layers, is_first)
    if part is None or layers is None:
        return demand
    return _with_exchange(demand, model_config, resolved, part.buffer_bytes, Stage(layers))


def stage_demand(
    folder: Path,
    backend: Backend,
    model_config: ModelConfig,
    resolved: ResolvedConfig,
    layers: range,
) -> MemoryDemand:
    """Return the memory that a process with some layers will need; no weights are read."""
    is_first = layers[0] == 0
    demand = _expected(folder, backend, model_config, resolved, None, layers, is_first)

    def buffers(shape: SplitShape, max_tokens: int) -> int:
        return buffer_bytes(shape, ParallelLayout(pipeline=2), max_tokens)

    return _with_exchange(demand, model_config, resolved, buffers, Stage(layers))


def _expected(
    folder: Path,
    backend: Backend,
    config: ModelConfig,
    resolved: ResolvedConfig,
    share: RankPart | None,
    layers: range | None,
    is_first: bool,
) -> MemoryDemand:
    weight_bytes = expected_weight_bytes(
        folder,
        config,
        resolved.dtype,
        create_plan(resolved.config.model, config),
        resolved.max_model_len,
        part=share,
        layers=layers,
    )
    if is_first:  # the first stage encodes pictures
        weight_bytes += expected_encoder_bytes(config, resolved.dtype)
    own = config if share is None else share.config(config)
    return model_demand(own, resolved, weight_bytes, backend.activation_dtype)


def load(
    folder: Path,
    backend: Backend,
    resolved: ResolvedConfig,
    *,
    eos_token_ids: Sequence[int] = (),
    on_progress: Progress | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    part: ModelPart | None = None,
) -> LoadedModel:
    """Load a checkpoint, or one rank's part of it.

    Args:
        folder: A folder or a GGUF file.
        backend: The backend that computes.
        resolved: The settings.
        eos_token_ids: Ids that end a sequence, besides those of ``config.json``.
        on_progress: Callback while weights load, with bytes done and bytes in all.
        meanwhile: The same as in :func:`~quire.models.loader.load_model`.
        part: A rank's part; None for the whole model. The first rank encodes pictures.

    Raises:
        ModelLoadError: The checkpoint cannot be used.
    """
    options = resolved.config.model
    opened = open_checkpoint(folder, resolved.dtype, resolved.max_model_len)
    decoder = load_opened(
        opened if part is None else part.open(opened, backend),
        backend,
        create_plan(options, opened.config),
        options.packed_weights_cache,
        on_progress,
        meanwhile,
        takes_adapters=resolved.config.adapters.enable_lora,
        shard=None if part is None else part.shard,
    )
    config = decoder.config
    eos = _possible((*config.eos_token_ids, *eos_token_ids), config.vocab_size)
    is_first = part is None or part.rank == 0
    encoder = load_encoder(folder, config, backend, config.dtype) if is_first else None
    weight_bytes = decoder.weight_bytes + (0 if encoder is None else encoder.nbytes)
    demand = model_demand(decoder.rank_config, resolved, weight_bytes, backend.activation_dtype)
    if part is not None:
        demand = _with_exchange(demand, config, resolved, part.buffer_bytes, decoder.stage)
    pictures = None
    if encoder is not None:
        kept = kept_bytes(config, resolved, weight_bytes)
        pictures = PictureRows(encoder, backend, kept)
    return LoadedModel(decoder, replace(config, eos_token_ids=eos), demand, pictures)


def _with_exchange(
    demand: MemoryDemand,
    config: ModelConfig,
    resolved: ResolvedConfig,
    buffers: Buffers,
    stage: Stage,
) -> MemoryDemand:
    """Return a demand with the KV cache of a rank's layers alone, and buffers for messages."""
    max_tokens = resolved.config.scheduler.max_num_batched_tokens
    exchanged = buffers(SplitShape.of_config(config), max_tokens)
    spec = stage.kv_cache_spec(demand.spec)
    return replace(demand, spec=spec, scratch_bytes=demand.scratch_bytes + exchanged)


def _possible(eos_token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return the ids that the model can produce, each once; log those that it cannot."""
    ids = tuple(dict.fromkeys(eos_token_ids))
    possible = tuple(token_id for token_id in ids if 0 <= token_id < vocab_size)
    beyond = sorted(set(ids) - set(possible))
    if beyond:
        log.warning(
            "end-of-sequence ids %s are beyond the vocabulary of %d: they cannot end a text",
            beyond,
            vocab_size,
        )
    return possible
