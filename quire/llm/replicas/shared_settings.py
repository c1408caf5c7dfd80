"""The settings that engines on several machines must share: the model, and how it is computed."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path

from quire.checkpoints.content_digest import content_digest
from quire.settings.config import PARTS, EngineConfig
from quire.store.hub import resolve_model

#: What is a machine's own: where files are, and what of it is used; and what only the server reads.
OWN = frozenset(
    (
        *("model", "tokenizer", "revision", "packed_weights_cache"),
        *("spec_model", "speculative_model"),
        *("memory", "gpu_memory_utilization", "free_gpu_memory_fraction"),
        *("kv_cache_memory_bytes", "max_tokens_in_paged_kv_cache", "num_gpu_blocks_override"),
        *("kv_offload_bytes", "kv_offloading_size", "kv_offload_dir", "kv_offload_disk_bytes"),
        *("kv_offload_url", "kv_offload_read_only", "threads"),
        *("node_rank", "master_addr", "master_port"),
        *("served_model_name", "chat_template", "default_chat_template_kwargs"),
        *("allowed_local_media_path", "allowed_media_domains"),
        *("generation_config", "override_generation_config"),
    )
)
#: Of a value; a longer one is told by its digest.
MOST_CHARACTERS = 48


def model_folders(config: EngineConfig) -> tuple[Path, Path]:
    """Return the folders of the checkpoint and its tokenizer on this machine.

    Raises:
        ModelLoadError: The model does not exist.
    """
    options = config.model
    folder = resolve_model(options.model, options.revision)
    if options.tokenizer is None:
        return folder, folder
    return folder, resolve_model(options.tokenizer, weights=False)


def shared_settings(config: EngineConfig) -> dict[str, str]:
    """Return the shared settings by flag, those that are not defaults, and a digest of the model.

    Raises:
        ModelLoadError: The model does not exist.
    """
    found = {"the model": content_digest(dict.fromkeys(model_folders(config)))}
    for part in (*(getattr(config, name) for name in PARTS), config):
        for field in fields(part):
            if not field.metadata or field.name in OWN:
                continue
            value = getattr(part, field.name)
            if value != field.default:
                found[f"--{field.name.replace('_', '-')}"] = _short(str(value))
    return found


def _short(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"a text of digest {hashlib.sha256(text.encode()).hexdigest()[:16]}"
