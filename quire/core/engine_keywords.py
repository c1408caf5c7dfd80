"""Keywords of ``LLM``, ``AsyncLLM`` and ``EngineArgs``: their types for editors, and their reading.

The types repeat the fields of :mod:`quire.core.config` and the names of
:mod:`quire.core.known_settings`, because type checkers read no tables; a test holds them equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict

from quire.core.cache_options import KVCacheDtype, KVCanaryMode
from quire.core.config import SETTINGS, EngineConfig
from quire.core.errors import ConfigError
from quire.core.known_settings import ENGINE, flag_name

#: A number of bytes or tokens: ``8589934592`` or ``"8GiB"``.
Count: TypeAlias = int | str
JsonObject: TypeAlias = dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class KvCacheConfig:
    """Size and sharing of the KV cache, in TensorRT-LLM's names.

    Args:
        free_gpu_memory_fraction: Of what weights and scratch leave free.
        enable_block_reuse: Reuse blocks of equal prefixes; None: as the engine does.
        max_tokens: Most tokens that the cache holds; with a fraction, the smaller of the two rules.
        max_tokens_in_paged_kv_cache: The same, in the name of a Triton configuration.
    """

    free_gpu_memory_fraction: float | None = None
    enable_block_reuse: bool | None = None
    max_tokens: Count | None = None
    max_tokens_in_paged_kv_cache: Count | None = None

    def keywords(self) -> dict[str, Any]:
        """Return the same as settings of an engine.

        Raises:
            ConfigError: Both names of the most tokens are given, with different values.
        """
        caps = {self.max_tokens, self.max_tokens_in_paged_kv_cache} - {None}
        if len(caps) > 1:
            raise ConfigError(
                "[config] max_tokens and max_tokens_in_paged_kv_cache are the same setting; got "
                f"{self.max_tokens} and {self.max_tokens_in_paged_kv_cache}. Give one."
            )
        return {
            "free_gpu_memory_fraction": self.free_gpu_memory_fraction,
            "enable_prefix_caching": self.enable_block_reuse,
            "max_tokens_in_paged_kv_cache": caps.pop() if caps else None,
        }


class EngineKeywords(TypedDict, total=False):
    """Every keyword but ``model``, with its type; ``quire serve --help-all`` explains them."""

    served_model_name: str | list[str] | tuple[str, ...]
    tokenizer: str | PathLike[str] | None
    revision: str | None
    allow_special_tokens_in_content: bool
    dtype: (
        Literal["auto", "float32", "float16", "bfloat16"]
        | Literal["half", "fp16", "f16", "float", "fp32", "f32", "bf16"]
    )
    quantization: (
        Literal["int8", "int6", "int5", "int4", "nf4", "int3", "int2"]
        | Literal["awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round", "fp8"]
        | Literal[
            "fbgemm_fp8", "compressed-tensors", "bitsandbytes", "modelopt", "modelopt_fp4", "hqq"
        ]
        | Literal["torchao", "mxfp4", "gguf"]
        | None
    )
    quantization_group_size: int | None
    quantization_overrides: str | None
    activations: Literal["checkpoint", "int8", "int16", "fp32"]
    packed_weights_cache: str | PathLike[str] | None
    max_model_len: Count | None
    generation_config: str
    override_generation_config: JsonObject | None
    chat_template: str | PathLike[str] | None
    default_chat_template_kwargs: JsonObject | None
    max_logprobs: int
    disable_any_whitespace: bool
    limit_mm_per_prompt: JsonObject | None
    allowed_media_domains: str | list[str] | tuple[str, ...]
    allowed_local_media_path: str | PathLike[str] | None
    block_size: int
    memory: Count | None
    gpu_memory_utilization: float
    free_gpu_memory_fraction: float | None
    kv_cache_memory_bytes: Count | None
    max_tokens_in_paged_kv_cache: Count | None
    num_gpu_blocks_override: int | None
    kv_cache_dtype: KVCacheDtype
    kv_layout: Literal["paged", "static", "contiguous"]
    enable_prefix_caching: bool
    kv_canary: KVCanaryMode
    kv_cache_metrics: bool
    use_cache: bool
    kv_offload_bytes: Count
    kv_offloading_size: float | None
    kv_offload_dir: str | PathLike[str] | None
    kv_offload_disk_bytes: Count
    kv_offload_url: str | None
    kv_offload_read_only: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    mixed_prefill_tokens: int | None
    target_itl_ms: float | None
    scheduling_policy: Literal["fcfs", "priority"]
    batching_type: Literal["inflight", "static"]
    speculative_config: JsonObject | list[dict[str, Any]] | None
    spec_method: str | None
    spec_model: str | PathLike[str] | None
    spec_tokens: int | None
    speculative_model: str | PathLike[str] | None
    num_speculative_tokens: int | None
    speculative_max_model_len: Count | None
    ngram_prompt_lookup_max: int | None
    ngram_prompt_lookup_min: int | None
    speculative_draft_tensor_parallel_size: int | None
    speculative_disable_by_batch_size: int | None
    enable_lora: bool
    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int | None
    device: Literal["auto", "cpu", "reference"]
    threads: int | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    stage_layers: str | None
    stage_devices: str | None
    stage_memory: str | None
    device_map: Literal["auto"] | None
    max_memory: JsonObject | None
    data_parallel_size: int
    enable_expert_parallel: bool
    num_redundant_experts: int
    enable_eplb: bool
    eplb_step_interval: int
    exact_tensor_parallel: bool
    distributed_executor_backend: Literal["auto", "uni", "mp", "ray"]
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    seed: int
    # Further forms of these.
    kv_cache_config: KvCacheConfig | dict[str, Any] | None
    enable_block_reuse: bool
    # Taken with a notice, see quire.core.known_settings.
    n_gpu_layers: Any
    flash_attn: Any
    jinja: bool
    enforce_eager: bool
    compilation_config: Any
    optimization_level: Any
    performance_mode: Any
    max_seq_len_to_capture: int | None
    use_v2_block_manager: bool
    trust_remote_code: bool
    disable_log_stats: bool
    async_scheduling: bool
    scheduler_reserve_full_isl: bool
    prefill_schedule_interval: int | None
    watermark: Any
    num_scheduler_steps: int | None
    max_num_active_seqs: int | None
    stream_interval: int | None
    decode_context_parallel_size: int | None
    prefill_context_parallel_size: int | None
    disable_custom_all_reduce: bool
    worker_use_ray: bool
    swap_space: Any
    preemption_mode: Any
    cpu_offload_gb: Any
    kv_offloading_backend: Any
    kv_transfer_config: Any
    kv_events_config: Any
    prefix_caching_hash_algo: Any
    attention_config: Any
    attention_backend: Any
    disable_cascade_attn: bool
    load_format: Any
    tokenizer_mode: Any
    skip_tokenizer_init: bool
    config_format: Any
    model_impl: Any
    runner: Any
    convert: Any
    task: Any
    download_dir: Any
    tokenizer_revision: Any
    code_revision: Any
    hf_overrides: Any
    rope_scaling: Any
    rope_theta: Any
    logprobs_mode: Any
    logits_processors: Any
    lora_modules: Any
    lora_dtype: Any
    fully_sharded_loras: bool
    mm_processor_kwargs: Any
    mm_processor_cache_gb: Any
    structured_outputs_config: Any
    guided_decoding_backend: Any
    enable_sleep_mode: bool
    collect_detailed_traces: Any
    enable_log_requests: bool
    disable_log_requests: bool


def settings_help() -> str:
    """Return a line for each setting but the model: its name, and what it is."""
    lines = [
        f"        {name}: {setting.metadata['help']}"
        for name, setting in SETTINGS.items()
        if name != "model"
    ]
    return "\n".join(["    Settings, also flags of quire serve:", *lines])


def read_keywords(
    keywords: Mapping[str, Any], *, as_flags: bool = False
) -> tuple[EngineConfig, list[str]]:
    """Read settings by name; those of other engines are taken with a notice.

    Args:
        keywords: Settings of :mod:`quire.core.config` and :mod:`quire.core.known_settings`.
        as_flags: Notices name flags rather than keywords.

    Returns:
        The settings, and a line for each one that does nothing or is read as another.

    Raises:
        ConfigError: A name is unknown, a value cannot be, or it asks for what cannot be done.
    """
    given = {**keywords}
    notices = []
    for name in [name for name in given if name in ENGINE]:
        value = given.pop(name)
        notice = ENGINE[name].notice(*_shown(name, value, as_flags), value)
        if notice is not None:
            notices.append(notice)
    for name, value in _other_forms(given):
        if given.setdefault(name, value) != value:
            raise ConfigError(f"[config] {name} must be given once; got {given[name]} and {value}.")
    config = EngineConfig.from_keywords(**given)
    return config, notices + _speculation_notices(config, as_flags)


def _speculation_notices(config: EngineConfig, as_flags: bool) -> list[str]:
    """Return what there is to say of the methods that propose tokens."""
    asked = config.speculative.parsed()
    missing = [
        f"{_shown('speculative_config', method.method, as_flags)[1]} is not available: no tokens "
        "are proposed (the answers are the same)."
        for method in asked.methods
        if not method.is_available
    ]
    return [*asked.notices, *missing]


def _shown(name: str, value: Any, as_flags: bool) -> tuple[str, str]:
    """Return how a user wrote a setting: its name, and name and value."""
    if as_flags:
        return flag_name(name), f"{flag_name(name)} {value}"
    return name, f"{name}={value!r:.80}"


def _other_forms(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """Take out further forms of settings; return the settings that they stand for."""
    found = []
    if "enable_block_reuse" in given:
        found.append(("enable_prefix_caching", given.pop("enable_block_reuse")))
    cache = given.pop("kv_cache_config", None)
    if isinstance(cache, dict):
        names = {field.name for field in fields(KvCacheConfig)}
        unknown = ", ".join(sorted(set(cache) - names))
        if unknown:
            raise ConfigError(
                f"[config] kv_cache_config may hold {', '.join(sorted(names))}; got {unknown}."
            )
        cache = KvCacheConfig(**cache)
    if cache is not None and not isinstance(cache, KvCacheConfig):
        raise ConfigError(f"[config] kv_cache_config must be KvCacheConfig; got {cache!r:.80}.")
    if cache is not None:
        found += [(name, value) for name, value in cache.keywords().items() if value is not None]
    return found
