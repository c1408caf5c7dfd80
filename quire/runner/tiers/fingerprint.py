"""What the bytes of a KV block depend on besides its tokens, as one hash."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from quire.core.model_config import ModelConfig
from quire.core.regular_files import open_regular
from quire.core.resolve import ResolvedConfig
from quire.kernels.backend import KVCache
from quire.models.packed_weights_cache import checkpoint_digest, samples, weight_files

#: Changes when the same model would compute or store other bytes.
VERSION = 2
READ_BYTES = 1 << 22


def settings_of(
    model: ModelConfig, resolved: ResolvedConfig, kv_cache: KVCache, kernels: Mapping[str, str]
) -> str:
    """Return what decides on a block's bytes besides the weights, as text.

    Args:
        model: Its shape.
        resolved: How weights are held, how long contexts are, and which rank has what.
        kv_cache: Of all ranks: the order of a block's bytes is theirs.
        kernels: That compute: other instruction sets round otherwise.
    """
    options, parallel = resolved.config.model, resolved.config.parallel
    # Without what was measured to choose them.
    names = sorted((kind, name.partition(" (")[0]) for kind, name in kernels.items())
    # There the context's length decides how positions are turned.
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
    """Return (32 bytes) what names a model's blocks on one machine, at once.

    Files of a checkpoint are told apart by names, sizes, times of change and samples.
    """
    return sha256(f"{checkpoint_digest(path, settings)} {settings}".encode()).digest()


def quick_fingerprint(path: Path, settings: str) -> bytes:
    """Return (32 bytes) what names a model's blocks on every machine, at once.

    Files of a checkpoint are told apart by names, sizes and samples, not by when they were copied.
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
    """Return (32 bytes) what names a model's blocks on every machine: all its weights are read."""
    state = sha256(settings.encode())
    for file in weight_files(path):
        state.update(f"\n{file.name} {file.stat().st_size}\n".encode())
        with open_regular(file) as stream:
            while part := stream.read(READ_BYTES):
                state.update(part)
    return state.digest()
