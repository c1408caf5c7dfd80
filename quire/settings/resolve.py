"""Resolution of settings with ``auto`` and ``None``: one pure function that says what it chose.

How many KV blocks there are is decided later, from measured weights, by the memory plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.counts import format_bytes
from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.core.speculative_config import refuse
from quire.settings.config import EngineConfig
from quire.settings.known_settings import settle_quantization
from quire.system.machine import Machine


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """Settings of an engine with nothing left open but the number of KV blocks.

    Attributes:
        config: The settings as they were given, but for a quantization that files have.
        device: Name of the backend, ``cpu`` or ``reference``.
        threads: Number of compute threads.
        dtype, kv_cache_dtype: Element types of weights and of K and V (a key of KV_DTYPE_BITS).
        max_model_len: Number of tokens of a request, at most; the memory plan may lower it if it
            was not given.
        memory_bytes: Bytes for weights, scratch and KV together, at most.
        choices: One line for each value that was chosen rather than given.
        notices: One line for each setting that is followed in another way than it was asked for.
    """

    config: EngineConfig
    device: str
    threads: int
    dtype: str
    kv_cache_dtype: str
    max_model_len: int
    memory_bytes: int
    choices: tuple[str, ...]
    notices: tuple[str, ...] = ()


def resolve(config: EngineConfig, machine: Machine, model_config: ModelConfig) -> ResolvedConfig:
    """Choose a value for every setting left open.

    Raises:
        ConfigError: A given value cannot be had on this machine or with this model.
    """
    if config.parallel.data_parallel_size > 1:
        raise ConfigError(
            "[config] --data-parallel-size must be 1 here, where there is one engine; got "
            f"{config.parallel.data_parallel_size}. quire serve starts several."
        )
    choices: list[str] = []

    def chosen(name: str, value: object, why: str) -> None:
        choices.append(f"{name} = {value}: {why}")

    config, notices = _with_quantization(config, model_config)
    device = config.parallel.device
    if device == "auto":
        device = "cpu"
        chosen("device", device, "native kernels serve every supported model")
    threads = config.parallel.threads
    if threads is None:
        ranks = config.parallel.machine_ranks
        threads = max(1, machine.num_cores // ranks)
        why = "the cores this process may use, within its CPU quota"
        chosen("threads", threads, why if ranks == 1 else f"{why}, divided by {ranks} ranks")
    dtype = str(config.model.dtype)
    if dtype == "auto":
        dtype = model_config.dtype
        why = "the checkpoint's"
        if dtype == "auto":
            dtype, why = "float32", "the checkpoint's configuration names none"
        chosen("dtype", dtype, why)
    kv_cache_dtype = str(config.cache.kv_cache_dtype)
    if kv_cache_dtype == "auto":
        kv_cache_dtype = dtype
        chosen("kv_cache_dtype", kv_cache_dtype, "follows dtype")
    elif kv_cache_dtype == "fp8":
        kv_cache_dtype = "fp8_e4m3"
        chosen("kv_cache_dtype", kv_cache_dtype, "what fp8 stands for")
    if model_config.is_encoder:
        why = "tokens of an encoder see all of their prompt, which is computed in one step"
        chosen("enable_chunked_prefill, enable_prefix_caching", "off", why)
    layout = config.cache.kv_layout
    if layout != "paged" and config.cache.enable_prefix_caching:
        chosen("enable_prefix_caching", "off", f"blocks are not shared with --kv-layout {layout}")
    max_model_len, why = _max_model_len(config, model_config)
    if why:
        chosen("max_model_len", max_model_len, why)
    _check_speculation(config, max_model_len)
    memory_bytes, why = _memory_bytes(config, machine)
    if why:
        chosen("memory", format_bytes(memory_bytes), why)
    return ResolvedConfig(
        config=config,
        device=device,
        threads=threads,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        memory_bytes=memory_bytes,
        choices=tuple(choices),
        notices=notices,
    )


def _with_quantization(
    config: EngineConfig, model_config: ModelConfig
) -> tuple[EngineConfig, tuple[str, ...]]:
    """Return settings with what weights are rounded to, and what there is to say of it."""
    rounded, notice = settle_quantization(
        config.model.quantization, model_config.stored_quantization
    )
    settled = replace(config, model=replace(config.model, quantization=rounded))
    return settled, (notice,) if notice else ()


def _max_model_len(config: EngineConfig, model_config: ModelConfig) -> tuple[int, str]:
    """Return the length and why it was chosen (empty when it was given)."""
    limit = model_config.max_position_embeddings
    given = config.model.max_model_len
    if given is not None:
        if given > limit:
            raise ConfigError(
                f"[config] --max-model-len must be at most {limit}, the positions the model was "
                f"made for; got {given}. Lower it."
            )
        return given, ""
    budget = config.scheduler.max_num_batched_tokens
    if not config.scheduler.enable_chunked_prefill and budget < limit:
        return budget, "without chunked prefill a prompt must fit --max-num-batched-tokens"
    return limit, "the model's"


def _check_speculation(config: EngineConfig, max_model_len: int) -> None:
    for method in config.speculative.parsed().methods:
        tokens = method.num_speculative_tokens
        if tokens >= max_model_len:
            rule = f"must be less than the {max_model_len} tokens of a request"
            refuse("num_speculative_tokens", rule, tokens)


def check_memory(num_bytes: int, machine: Machine) -> None:
    """Refuse more memory than there is.

    Raises:
        ConfigError: The memory asked for is more than the machine has.
    """
    if num_bytes > machine.total_bytes:
        raise ConfigError(
            f"[config] --memory must be at most the {format_bytes(machine.total_bytes)} this "
            f"process may use; got {format_bytes(num_bytes)}. Lower it."
        )


def _memory_bytes(config: EngineConfig, machine: Machine) -> tuple[int, str]:
    given = config.cache.memory
    if given is None and config.cache.free_gpu_memory_fraction is not None:
        return machine.free_bytes, "all that is free; the KV cache gets a fraction of the rest"
    if given is None:
        fraction = config.cache.gpu_memory_utilization
        return int(fraction * machine.free_bytes), (
            f"{fraction:g} of the {format_bytes(machine.free_bytes)} that are free"
        )
    check_memory(given, machine)
    if given > machine.free_bytes:
        return given, f"as given, though only {format_bytes(machine.free_bytes)} are free now"
    return given, ""
