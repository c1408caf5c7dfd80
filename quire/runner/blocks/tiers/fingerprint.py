"""Fingerprints: one hash of all that a KV block's bytes depend on besides its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from quire.checkpoints.packed_weights_cache import checkpoint_digest, samples, weight_files
from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import KVCache
from quire.settings.resolve import ResolvedConfig
from quire.system.regular_files import open_regular

#: Version, which changes when the same model computes or stores other bytes.
VERSION = 2
READ_BYTES = 1 << 22


def settings_of(
    model: ModelConfig, resolved: ResolvedConfig, kv_cache: KVCache, kernels: Mapping[str, str]
) -> str:
    """Return as text all that a block's bytes depend on besides weights and tokens.

    Args:
        model: The model's shape.
        resolved: Settings for the form of weights, the length of contexts and the division over
            ranks.
        kv_cache: The KV cache of all ranks, which decides the order of a block's bytes.
        kernels: Names of the kernels, by kind: other instruction sets round differently.
    """
    options, parallel = resolved.config.model, resolved.config.parallel
    # Without the measurements that chose them.
    names = sorted((kind, name.partition(" (")[0]) for kind, name in kernels.items())
    # With LongRoPE the rotation of positions depends on the context's length.
    longest = resolved.max_model_len if "longrope" in repr(model) else None
    return repr(
        (
            VERSION, model, kv_cache.spec, kv_cache.block_bytes, names, longest,
            options.quantization, options.quantization_group_size,
            options.quantization_overrides, options.activations,
            parallel.layout, parallel.exact_tensor_parallel, parallel.enable_expert_parallel,
        )
    )  # fmt: skip


def local_fingerprint(path: Path, settings: str) -> bytes:
    """Return the fingerprint (32 bytes) of a model's blocks on one machine, without delay.

    Files of a checkpoint are told apart by names, sizes, times of change and samples.
    """
    return sha256(f"{checkpoint_digest(path, settings)} {settings}".encode()).digest()


def quick_fingerprint(path: Path, settings: str) -> bytes:
    """Return the fingerprint (32 bytes) of a model's blocks on every machine, without delay.

    Files of a checkpoint are told apart by names, sizes and samples, not by times of change.
    """
    state = sha256(settings.encode())
    for file in weight_files(path):
        num_bytes = file.stat().st_size
        state.update(f"\n{file.name} {num_bytes}\n".encode())
        with open_regular(file) as stream:
            for part in samples(stream, num_bytes):
                state.update(part)
    return state.digest()


def shared_fingerprint(path: Path, settings: str) -> bytes:
    """Return the fingerprint (32 bytes) of a model's blocks on every machine; reads all weights."""
    state = sha256(settings.encode())
    for file in weight_files(path):
        state.update(f"\n{file.name} {file.stat().st_size}\n".encode())
        with open_regular(file) as stream:
            while part := stream.read(READ_BYTES):
                state.update(part)
    return state.digest()
