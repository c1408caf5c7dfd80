"""Draft models: found and sized before their target, the model they propose for, and loaded after.

Their tokens are compared with the target's where tokenizers are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quire.core.counts import format_bytes
from quire.core.errors import ConfigError, QuireError
from quire.core.model.model_config import ModelConfig
from quire.core.speculative_config import SpeculativeMethod, refuse, refuse_drafter
from quire.kernels.backend import Backend
from quire.layers.workspace import workspace_bytes
from quire.models.config.config_reader import read_generating_config
from quire.models.decoder import Decoder
from quire.models.loader import load_model, load_rounded
from quire.models.model import Model
from quire.models.model_builder import Progress
from quire.models.weight_bytes import expected_weight_bytes
from quire.planner.memory_budget import MemoryDemand
from quire.quantization.quantization_plan import QuantizationPlan, create_plan
from quire.runner.memory.memory_plan import MemoryPlan, kept_window, plan_memory
from quire.settings.config import ModelOptions
from quire.settings.resolve import ResolvedConfig, resolve
from quire.speculative.create_proposers import Maker
from quire.speculative.drafters.draft_model import DraftModelProposer
from quire.speculative.drafters.draft_prefill import most_tokens
from quire.speculative.drafters.translated_draft import TranslatedDraftProposer
from quire.speculative.drafters.valid_slots import SLOT_BYTES
from quire.speculative.drafters.vocabularies import VocabularyPair
from quire.store.hub import resolve_model
from quire.system.log import get_logger
from quire.system.machine import Machine

log = get_logger(__name__)

#: Methods whose drafter is a whole model.
METHODS = ("draft_model", "self")


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A draft model that is not loaded; also the key of its demand.

    Attributes:
        method: The method that it drafts for.
        path: The draft's checkpoint, a folder or a GGUF file.
        config: The draft's shape, read from the checkpoint.
        settings: The engine's settings, with the draft in the model's place.
        vocab_size: Number of tokens in the target's vocabulary.
        max_model_len: Tokens of the longest sequence that gets proposals.
        target_plan: Quantization of the target where both have one checkpoint, to share weights;
            None where the checkpoints differ.
    """

    method: SpeculativeMethod
    path: Path
    config: ModelConfig
    settings: ResolvedConfig
    vocab_size: int
    max_model_len: int
    target_plan: QuantizationPlan | None

    @property
    def name(self) -> str:
        """The draft's name in the settings."""
        return self.method.model or f"the model in {self.method.quantization}"

    @property
    def max_tokens(self) -> int:
        """Tokens that the draft computes at once, at most."""
        return most_tokens(self.settings.config.scheduler.max_num_batched_tokens)

    def demand(self, backend: Backend, weight_bytes: int | None = None) -> MemoryDemand:
        """Return the memory that the draft needs besides the target's.

        Args:
            backend: The backend of both models.
            weight_bytes: Bytes of its own weights; None to estimate them.
        """
        config, settings = self.config, self.settings
        cache, options = settings.config.cache, settings.config.scheduler
        if weight_bytes is None:
            plan = create_plan(settings.config.model)
            weight_bytes = expected_weight_bytes(
                self.path, config, settings.dtype, plan, self.max_model_len, self.target_plan
            )
        widths = {config.vocab_size, self.vocab_size}  # logits of both widths where they differ
        scratch = workspace_bytes(config, self.max_tokens, backend.activation_dtype)
        scratch += 4 * options.max_num_seqs * sum(widths)
        spec = config.kv_cache_spec(cache.block_size, settings.kv_cache_dtype)
        # No more slots than sequences of full length have, and no more than fit in memory.
        num_slots = options.max_num_seqs * settings.max_model_len
        num_slots = min(num_slots, settings.memory_bytes // spec.token_bytes)
        scratch += SLOT_BYTES * num_slots
        return MemoryDemand(
            weight_bytes=weight_bytes,
            weight_dtype=settings.dtype,
            scratch_bytes=scratch,
            spec=spec,
            max_model_len=settings.max_model_len,
        )


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model that is ready to compute.

    Attributes:
        draft: The draft before it was loaded.
        decoder: The draft's weights, on the target's backend.
        demand: Bytes of the draft, and the blocks of its KV cache.
    """

    draft: Draft
    decoder: Decoder
    demand: MemoryDemand

    def maker(self, num_blocks: int, vocabularies: VocabularyPair | None = None) -> Maker:
        """Allocate buffers and KV cache; return a maker of the proposer of a token table.

        Args:
            num_blocks: Blocks of the KV cache.
            vocabularies: Vocabularies of target and draft; None where they are the same.
        """
        kv_cache = self.decoder.backend.kv_cache(self.demand.spec, num_blocks)
        max_rows = self.draft.settings.config.scheduler.max_num_seqs
        self.decoder.reserve(self.draft.max_tokens, max_rows)
        sizes = {
            "max_tokens": self.draft.max_tokens,
            "vocab_size": self.draft.vocab_size,
            "max_model_len": self.draft.max_model_len,
        }
        if vocabularies is not None:
            return lambda table: TranslatedDraftProposer(
                table, self.decoder, kv_cache, vocabularies, **sizes
            )
        return lambda table: DraftModelProposer(table, self.decoder, kv_cache, **sizes)


def find_drafts(
    folder: Path, target: ModelConfig, resolved: ResolvedConfig, machine: Machine
) -> list[Draft]:
    """Return the draft models that the settings ask for; weights are not read.

    Args:
        folder: The target's checkpoint.
        target: The target's shape.
        resolved: The engine's settings.
        machine: The memory and processors that may be used.

    Raises:
        ConfigError: A draft model cannot be used.
    """
    drafts = []
    for method in resolved.config.speculative.methods():
        if method.method in METHODS:
            if method.model is None and method.method != "self":
                refuse("model", f"must be given for method {method.method} (--spec-model)", None)
            try:
                drafts.append(_find(method, folder, target, resolved, machine))
            except QuireError as error:
                raise refuse_drafter(method, error) from error
    return drafts


def plan_with_drafts(
    resolved: ResolvedConfig,
    target: MemoryDemand,
    drafts: Mapping[Draft, MemoryDemand],
    device_bytes: int,
) -> MemoryPlan:
    """Divide the memory between a model and its drafts, as :func:`plan_memory` does.

    Raises:
        ConfigError: The memory is too small; the message names a draft without which it is enough.
    """
    demand, plan = target, None
    for draft, own in drafts.items():
        plan = plan or plan_memory(resolved, target, device_bytes)
        demand = demand.with_model(own)
        try:
            plan = plan_memory(resolved, demand, device_bytes)
        except ConfigError as error:
            raise ConfigError(
                f"[config] --speculative-config: {draft.name} must fit in memory next to the "
                f"model; it needs {format_bytes(own.fixed_bytes)}, and "
                f"{format_bytes(own.spec.token_bytes)} for each token of KV. Take a smaller "
                f"drafter or none, or make room: {error}"
            ) from error
    return plan or plan_memory(resolved, target, device_bytes)


def load_draft(draft: Draft, target: Model, on_progress: Progress | None = None) -> LoadedDraft:
    """Load a draft model.

    Raises:
        ConfigError: The checkpoint cannot be used.
    """
    options, backend = draft.settings.config.model, target.backend
    plan, folder = create_plan(options), options.packed_weights_cache
    try:
        if draft.target_plan is not None:
            decoder = load_rounded(
                draft.path, target, plan, packed_weights_cache=folder, on_progress=on_progress
            )
        else:
            decoder = load_model(
                draft.path,
                backend,
                dtype=draft.settings.dtype,
                plan=plan,
                max_model_len=draft.max_model_len,
                packed_weights_cache=folder,
                on_progress=on_progress,
            )
    except QuireError as error:
        raise refuse_drafter(draft.method, error) from error
    for line in draft.settings.notices:
        log.warning("drafts by %s: %s", draft.name, line)
    log.info(
        "drafts by %s: weights %s, for sequences of up to %d tokens",
        draft.name,
        format_bytes(decoder.weight_bytes),
        draft.max_model_len,
    )
    return LoadedDraft(draft, decoder, draft.demand(backend, decoder.weight_bytes))


def divide_progress(on_progress: Progress | None, paths: Sequence[Path]) -> list[Progress | None]:
    """Return the progress of checkpoints that are loaded in turn, each as a part of the whole."""
    if on_progress is None:
        return [None] * len(paths)
    sizes = [_stored_bytes(path) for path in paths]
    return [_part(on_progress, sum(sizes[:i]), sum(sizes[i + 1 :])) for i in range(len(paths))]


def _part(on_progress: Progress, before: int, after: int) -> Progress:
    return lambda done, total: on_progress(before + done, before + total + after)


def _stored_bytes(path: Path) -> int:
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _find(
    method: SpeculativeMethod,
    folder: Path,
    target: ModelConfig,
    resolved: ResolvedConfig,
    machine: Machine,
) -> Draft:
    options: ModelOptions = replace(
        resolved.config.model,
        quantization=method.quantization,
        quantization_overrides=None,
        activations="int8",
        max_model_len=None,
    )
    path, config = folder, target
    target_plan: QuantizationPlan | None = create_plan(resolved.config.model, target)
    if method.method != "self":
        assert method.model is not None, method
        target_plan = None
        path = resolve_model(method.model, method.revision)
        config = read_generating_config(path)
    settings = resolve(replace(resolved.config, model=options), machine, config)
    limits = [resolved.max_model_len, config.max_position_embeddings]
    if method.max_model_len is not None:
        limits.append(method.max_model_len)
    kept = kept_window(target, resolved.config.cache)
    seen = config.sliding_window if all(config.layer_windows) else None
    if kept is not None and (seen is None or seen > kept):
        limits.append(kept)  # the draft would need blocks that the target frees
    return Draft(method, path, config, settings, target.vocab_size, min(limits), target_plan)
