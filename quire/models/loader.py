"""A checkpoint to a :class:`Decoder`: tensors are read once and packed for the backend."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Set
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from quire.checkpoints.packed_weights_cache import PackedWeightsCache, open_packed_weights_cache
from quire.checkpoints.quantized.quantized_checkpoint import QuantizedCheckpoint
from quire.checkpoints.tensor_source import TensorSource, check_tensors
from quire.core.errors import ConfigError, WeightMismatchError
from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import Backend
from quire.models.config.config_reader import read_generating_config, read_model_config
from quire.models.decoder import Decoder
from quire.models.draft_heads.mtp_layouts import module_names
from quire.models.family_tensors import map_weights, open_tensors, stored_names
from quire.models.model import Model
from quire.models.model_builder import ModelBuilder, Progress
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shards.rank_model import Shard
from quire.models.shared_weights import SharedWeights
from quire.models.stage import Stage
from quire.models.vision.encoder_loader import encoder_names
from quire.models.weight_map import WeightMap
from quire.quantization.quantization_plan import QuantizationPlan

log = logging.getLogger(__name__)


def load_model(
    path: str | Path,
    backend: Backend,
    *,
    dtype: str = "auto",
    plan: QuantizationPlan | None = None,
    max_model_len: int | None = None,
    packed_weights_cache: str | None = None,
    on_progress: Progress | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Decoder:
    """Load a checkpoint.

    Args:
        path: A folder with ``config.json`` and safetensors, or a GGUF file.
        backend: The backend that packs and computes.
        dtype: Type the weights are held in: ``float32``, ``float16``, ``bfloat16``, or ``auto`` for
            the checkpoint's.
        plan: The plan of what is quantized; None quantizes nothing.
        max_model_len: Longest context served, in tokens; None for the model's.
        packed_weights_cache: Folder that keeps packed weights for later starts, or None.
        on_progress: Function called with bytes done and bytes in all.
        meanwhile: Function called once before weights are read, while those packed earlier are
            checked.

    Raises:
        ModelLoadError: The folder, its configuration or a file is missing or damaged.
        UnsupportedArchitectureError: The architecture or one of its options is not implemented.
        WeightMismatchError: A tensor is missing, surplus or of another shape.
        ConfigError: ``dtype``, ``plan`` or ``max_model_len`` does not fit the model, or the context
            does not fit in memory.
    """
    opened = open_checkpoint(Path(path), dtype, max_model_len)
    return load_opened(opened, backend, plan, packed_weights_cache, on_progress, meanwhile)


def load_opened(
    opened: OpenedCheckpoint,
    backend: Backend,
    plan: QuantizationPlan | None = None,
    packed_weights_cache: str | None = None,
    on_progress: Progress | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    takes_adapters: bool = False,
    shard: Shard | None = None,
) -> Decoder:
    """Do the same with a checkpoint that is open, perhaps so that it takes adapters.

    With a ``shard``, a rank's share is read alone; all ranks compute together from then on. Of a
    checkpoint's stage (:meth:`OpenedCheckpoint.of_stage`) the weights of its layers alone are read.
    """
    plan = plan or QuantizationPlan()
    plan.check_overrides(_modules(opened.weights.of_all_layers()))
    settings = plan.held if shard is None else f"{plan.held} {shard}"
    if opened.stage is not None:
        settings = f"{settings} {opened.stage}"
    cache = _open_cache(opened, packed_weights_cache, backend, settings)
    meanwhile()
    own = SharedWeights()
    builder = ModelBuilder(backend, opened, plan, cache, on_progress, own, takes_adapters, shard)
    return _build(opened, builder, cache)


def load_rounded(
    path: str | Path,
    target: Model,
    plan: QuantizationPlan,
    *,
    packed_weights_cache: str | None = None,
    on_progress: Progress | None = None,
) -> Decoder:
    """Load the checkpoint of a decoder once more, rounded; weights that are equal are shared.

    Ids are looked up in the target's embedding whatever it is held in: a lookup reads a few rows,
    which no rounding makes quicker.

    Args:
        path: The target's checkpoint.
        target: The target, whose type of floats and longest context are taken over.
        plan: The plan of what is quantized.
        packed_weights_cache, on_progress: The same as in :func:`load_model`.

    Returns:
        A decoder; ``weight_bytes`` are those of weights that are its own.

    Raises:
        ModelLoadError, ConfigError: The same as in :func:`load_model`.
    """
    opened = open_checkpoint(Path(path), target.config.dtype, target.max_model_len)
    # What is shared is not in the file: it is not that of the plan without a target.
    settings = f"{plan.held} next to {sorted(map(str, target.held.linears))}"
    cache = _open_cache(opened, packed_weights_cache, target.backend, settings)
    builder = ModelBuilder(target.backend, opened, plan, cache, on_progress, target.held)
    return _build(opened, builder, cache)


def _open_cache(
    opened: OpenedCheckpoint, folder: str | None, backend: Backend, settings: str
) -> PackedWeightsCache | None:
    settings = f"{opened.config} {settings}"
    return open_packed_weights_cache(folder, opened.path, backend, settings)


def _build(
    opened: OpenedCheckpoint, builder: ModelBuilder, cache: PackedWeightsCache | None
) -> Decoder:
    if cache is not None:
        cache.wait()
    with cache or nullcontext():
        parts = builder.decoder_parts(opened.max_model_len)
        builder.forms.report()
    parts.held.fine_inputs = builder.forms.are_fine_by_size
    stage = opened.stage or Stage(opened.weights.layers)
    return Decoder(opened.config, builder.backend, opened.max_model_len, parts, stage)


def open_checkpoint(path: Path, dtype: str, max_model_len: int | None) -> OpenedCheckpoint:
    """Read the configuration and check names and shapes; arguments are :func:`load_model`'s."""
    stored = read_model_config(path)
    config = _settle(stored, dtype, max_model_len)
    tensors = open_tensors(path, config)
    if config.pooler and config.classifier is None:  # many a BERT is saved without
        names = stored_names(tensors, config)
        config = replace(config, pooler=f"{names.pooler}.weight" in tensors.names)
    weights = map_weights(tensors, config)
    for line in tensors.notices():
        log.info("%s: %s", path, line)
    _check_tensors(tensors, weights)
    # Floats of several types are held as they are stored, unless a type was asked for.
    keeps_types = tensors.mixes_types and config.dtype == stored.dtype
    max_model_len = max_model_len or config.max_position_embeddings
    return OpenedCheckpoint(path, config, keeps_types, tensors, weights, max_model_len)


def open_generating(path: Path, dtype: str, max_model_len: int | None) -> OpenedCheckpoint:
    """Return :func:`open_checkpoint` of a model that has an output head.

    Raises:
        UnsupportedArchitectureError: The model has none; also what :func:`open_checkpoint` says.
    """
    read_generating_config(path)
    return open_checkpoint(path, dtype, max_model_len)


def _settle(config: ModelConfig, dtype: str, max_model_len: int | None) -> ModelConfig:
    """Return ``config`` with the type its weights will be held in."""
    dtype = config.dtype if dtype == "auto" else dtype
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"[load] --dtype must be one of {', '.join(DTYPE_BYTES)}; got {dtype}.")
    limit = config.max_position_embeddings
    if max_model_len is not None and not 1 <= max_model_len <= limit:
        raise ConfigError(
            f"[load] --max-model-len must be in 1..{limit}, the context of the checkpoint; "
            f"got {max_model_len}."
        )
    return replace(config, dtype=dtype)


def _modules(weights: WeightMap) -> set[str]:
    """Return the names of all matrices; an embedding that is also the head has both names."""
    shapes = weights.shapes()
    modules = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) > 1}
    return modules | {weights.names.head}


def _check_tensors(checkpoint: TensorSource, weights: WeightMap) -> None:
    names = weights.names
    head, embedding = f"{names.head}.weight", f"{names.embedding}.weight"
    tied = weights.config.tie_word_embeddings
    harmless = (*names.harmless, *((re.escape(head),) if tied else ()))
    modules = module_names(checkpoint.names, weights.config.num_layers)
    of_pictures = set() if weights.config.vision is None else encoder_names(checkpoint.names)
    shapes, others = weights.shapes(), modules | of_pictures
    others = others | _not_needed(checkpoint, {head, *shapes}, others)
    check_tensors(checkpoint, shapes, harmless, others)
    if modules:
        log.info(
            "%s: %d tensors are a module that drafts further tokens, which the model itself does "
            'without; --speculative-config \'{"method": "mtp"}\' drafts by it',
            checkpoint.path,
            len(modules),
        )
    is_repeated = tied and weights.config.generates and head in checkpoint.names
    if not is_repeated or head == embedding:
        return
    ours, theirs = (checkpoint.tensor(name).float32() for name in (head, embedding))
    if not np.array_equal(ours, theirs):
        raise WeightMismatchError(
            f"[load] {head} must equal {embedding} where config.json has tie_word_embeddings; got "
            f"other values in {checkpoint.path}. Set tie_word_embeddings to false to use both."
        )
    checkpoint.release(head)
    checkpoint.release(embedding)
    log.info("%s: %s repeats the tied embedding and is not read again", checkpoint.path, head)


def _not_needed(checkpoint: TensorSource, needed: set[str], others: Set[str]) -> set[str]:
    """Return the tensors that the model does not need: other programs', and biases of 0.

    Args:
        checkpoint: The checkpoint whose tensors these are.
        needed: Names of the model's own tensors.
        others: Names of tensors that another part takes.
    """
    roots = {name.partition(".")[0] for name in needed}
    foreign = {name for name in checkpoint.names if name.partition(".")[0] not in roots} - others
    if foreign:
        log.warning(
            "%s: tensors that are not of this architecture are not read: %d, %s first",
            checkpoint.path,
            len(foreign),
            min(foreign),
        )
    if not isinstance(checkpoint, QuantizedCheckpoint):
        return foreign
    zeros = checkpoint.zero_biases(needed)
    if zeros:
        log.info("%s: biases that are 0 are not needed: %d", checkpoint.path, len(zeros))
    return foreign | zeros
