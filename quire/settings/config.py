"""Every engine setting with its default, in parts; flags and ``LLM`` keywords come from here.

Resolution of ``auto`` and ``None`` lives in :mod:`quire.settings.resolve`; nothing edits a config.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from os import PathLike, fspath
from typing import Any, Literal

from quire.core.counts import parse_count
from quire.core.errors import ConfigError
from quire.core.model.quantization_names import QUANTIZATIONS, QuantizationName, StoredName
from quire.core.speculative_config import METHODS, MethodName, SpeculativeMethod
from quire.settings.adapter_options import AdapterOptions
from quire.settings.cache_options import CacheOptions
from quire.settings.known_settings import QUANTIZATIONS as KNOWN_QUANTIZATIONS
from quire.settings.known_settings import flag_name
from quire.settings.kv_transfer import KVTransfer
from quire.settings.offload_options import OffloadOptions
from quire.settings.option import options_of
from quire.settings.option_types import check_types
from quire.settings.other_programs import meant_setting
from quire.settings.parallel_options import ParallelOptions
from quire.settings.picture_settings import parse_pictures_per_prompt
from quire.settings.speculative_settings import (
    SHORT_FORMS,
    SpeculationSettings,
    name_methods,
    parse_speculative,
)

_model, _access = options_of("model"), options_of("access")
_scheduling, _speculation = options_of("scheduling"), options_of("speculation")
#: Tokens that a step may draw in any case: a single sequence may have that many proposed but one.
LEAST_LOGITS_ROWS = 32
#: In an override: not rounded.
KEEP = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Settings of the checkpoint, and of how its numbers are held."""

    model: str = _model("quire-tiny", "folder, GGUF file, hub id, or a name that quire list shows")
    served_model_name: tuple[str, ...] = _model(
        (), "name clients use; default: an id, or the last part of a path"
    )
    tokenizer: str | None = _model(None, "folder, GGUF file or hub id; default: the model's own")
    revision: str | None = _model(None, "branch, tag or commit of a hub id")
    allow_special_tokens_in_content: bool = _model(
        False, "messages that spell a special token mean it"
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = _model(
        "auto",
        "element type of the weights; auto: the checkpoint's",
        common=True,
        spellings={
            **dict.fromkeys(("half", "fp16", "f16"), "float16"),
            **dict.fromkeys(("float", "fp32", "f32"), "float32"),
            "bf16": "bfloat16",
        },
    )
    quantization: QuantizationName | StoredName | None = _model(
        None,
        "round the linears' weights at load",
        common=True,
        aliases=("-q",),
        spellings={name: name for name in KNOWN_QUANTIZATIONS},
        unavailable=dict.fromkeys(
            ("q8_0", "q4_0", "q4_k_m", "Q8_0", "Q4_0", "Q4_K_M"),
            "must be int8 or int4 for weights that are rounded at load; GGUF types are the files', "
            "which quire convert --type writes",
        )
        | dict.fromkeys(("4bit", "4-bit"), "must be int4 or nf4")
        | dict.fromkeys(("8bit", "8-bit"), "must be int8"),
    )
    quantization_group_size: int | None = _model(None, "weights that share a scale; 0: a row")
    quantization_overrides: str | None = _model(
        None, "modules with a format of their own: 'lm_head=none,*.down_proj=int8'"
    )
    activations: Literal["checkpoint", "int8", "int16", "fp32"] = _model(
        "checkpoint",
        "inputs of quantized linears; checkpoint: rounded as it says, else to 8 bits (16 if small)",
    )
    packed_weights_cache: str | None = _model(
        None, "folder that keeps packed weights; later starts map them"
    )
    max_model_len: int | None = _model(
        None,
        "longest context (4k: 4096); default: the model's, or what fits",
        common=True,
        sized=True,
        spellings={"auto": None, "-1": None},
    )
    generation_config: str = _model(
        "auto",
        "auto: the model's own sampling defaults; none: ours",
        spellings={"vllm": "none"},
    )
    override_generation_config: str | None = _model(
        None, "sampling defaults in place of the model's: {...}", is_json=True
    )
    chat_template: str | None = _model(None, "Jinja file used instead of the model's template")
    default_chat_template_kwargs: str | None = _model(
        None, "variables of the chat template: {...}; a request's win", is_json=True
    )
    max_logprobs: int = _model(20, "most alternatives a request may ask for; -1: no limit")
    disable_any_whitespace: bool = _model(False, "forced JSON has no white space between its parts")

    limit_mm_per_prompt: str | None = _model(
        None, "most pictures of a prompt: image=4; default: what fits", is_json=True
    )
    allowed_media_domains: tuple[str, ...] = _access(
        (), "host that pictures may be fetched from; *: any public one"
    )
    allowed_local_media_path: str | None = _access(
        None, "folder that pictures may be read from, by file: URLs"
    )

    def pictures_per_prompt(self) -> int | None:
        """Return the most pictures of a prompt; None: what fits."""
        return parse_pictures_per_prompt(self.limit_mm_per_prompt)

    def json_object(self, name: str) -> dict[str, Any]:
        """Return a setting that holds a JSON object; empty when it is not given.

        Raises:
            ConfigError: The setting holds something else.
        """
        text = getattr(self, name)
        try:
            value = {} if text is None else json.loads(text)
        except (ValueError, RecursionError) as error:
            value = error
        if not isinstance(value, dict):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"[config] {flag} must be a JSON object; got {text!r:.80}.")
        return value

    def overrides(self) -> list[tuple[str, str]]:
        """Return patterns of modules with the name of a quantization, or :data:`KEEP`.

        Raises:
            ConfigError: ``quantization_overrides`` is not ``pattern=name,pattern=name``.
        """
        if self.quantization_overrides is None:
            return []
        pairs = []
        for part in self.quantization_overrides.split(","):
            pattern, equals, name = (word.strip() for word in part.partition("="))
            if not equals or not pattern or name not in (*QUANTIZATIONS, KEEP):
                raise ConfigError(
                    "[config] --quantization-overrides must be pairs of a module's name (with * "
                    f"for any part) and one of {', '.join((*QUANTIZATIONS, KEEP))}, such as "
                    f"'lm_head=none,*.down_proj=int8'; got {part!r}."
                )
            pairs.append((pattern, name))
        return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Settings of what runs in a step."""

    max_num_seqs: int = _scheduling(128, "most requests running at once", common=True)
    max_num_batched_tokens: int = _scheduling(2048, "most tokens computed in a step", common=True)
    enable_chunked_prefill: bool = _scheduling(True, "split prompts that exceed the step's budget")
    long_prefill_token_threshold: int = _scheduling(
        0, "most tokens of one prompt in a step; 0: only the budget"
    )
    mixed_prefill_tokens: int | None = _scheduling(
        None,
        "most prompt tokens in a step that running requests wait for; 0: only the budget; default: "
        "112, and more of short prompts, up to 100 ms",
    )
    target_itl_ms: float | None = _scheduling(
        None,
        "milliseconds that a step should take, as steps are measured, in place of "
        "--mixed-prefill-tokens",
    )
    scheduling_policy: Literal["fcfs", "priority"] = _scheduling(
        "fcfs", "priority: lower value starts first"
    )
    batching_type: Literal["inflight", "static"] = _scheduling(
        "inflight", "inflight: start requests at any step; static: when all others ended"
    )

    @property
    def max_logits_rows(self) -> int:
        """Most tokens that a step draws, those at proposed positions included."""
        return max(self.max_num_seqs, LEAST_LOGITS_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeOptions:
    """Settings of the tokens that are proposed ahead, for the model to check several at once.

    All of it can be said in ``speculative_config``; the others are short forms of its keys.
    """

    speculative_config: str | None = _speculation(
        None,
        'propose tokens for the model to check: {"method": "ngram"}, or a list of such objects',
        is_json=True,
        aliases=("-sc",),
    )
    spec_method: str | None = _speculation(
        None, f"method that proposes tokens ({', '.join(METHODS)})", common=True
    )
    spec_model: str | None = _speculation(None, "the drafter: folder, GGUF file, hub id or name")
    spec_tokens: int | None = _speculation(None, "most tokens proposed in a round")
    speculative_model: str | None = _speculation(
        None, "older name of --spec-model; [ngram]: the method"
    )
    num_speculative_tokens: int | None = _speculation(None, "older name of --spec-tokens")
    speculative_max_model_len: int | None = _speculation(
        None, "sequence length in tokens from which on nothing is proposed", sized=True
    )
    ngram_prompt_lookup_max: int | None = _speculation(None, "ngram: most tokens that must match")
    ngram_prompt_lookup_min: int | None = _speculation(None, "ngram: least tokens that must match")
    speculative_draft_tensor_parallel_size: int | None = _speculation(None, "1: one process drafts")
    speculative_disable_by_batch_size: int | None = _speculation(
        None, "number of running requests from which on nothing is proposed"
    )

    def parsed(self) -> SpeculationSettings:
        """Return every method that is asked for, with what there is to say of them.

        Raises:
            ConfigError: A key is unknown, a value cannot be, or two contradict each other.
        """
        short = {name: getattr(self, name) for name in SHORT_FORMS}
        return parse_speculative(self.speculative_config, short)

    def with_methods(self, find: Callable[[SpeculativeMethod], MethodName]) -> SpeculativeOptions:
        """Return these settings with a name for each method that they leave out.

        Args:
            find: Function that returns the method of a model.
        """
        asked = self.parsed().methods
        found = [replace(m, method=find(m)) if m.is_inferred else m for m in asked]
        if not any(method.is_inferred for method in asked):
            return self
        if len(found) == 1:
            return replace(self, spec_method=found[0].method)
        return replace(self, speculative_config=name_methods(self.speculative_config, found))

    def methods(self) -> tuple[SpeculativeMethod, ...]:
        """Return the methods that the engine has; requests that name none take the first."""
        return tuple(method for method in self.parsed().methods if method.is_available)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings of one engine.

    Args:
        seed: Base of the random draws of requests that bring no seed of their own.
        transfer: The engine's role, where prompts are computed apart; no setting: the server that
            starts the engines gives it.
        memory_parts: Number of engines and ranks that ``--memory`` is divided among; no setting
            either.
    """

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    offload: OffloadOptions = field(default_factory=OffloadOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    speculative: SpeculativeOptions = field(default_factory=SpeculativeOptions)
    adapters: AdapterOptions = field(default_factory=AdapterOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    seed: int = _model(0, "base seed of requests without a seed")
    transfer: KVTransfer | None = None
    memory_parts: int = 1

    @classmethod
    def from_keywords(cls, **keywords: Any) -> EngineConfig:
        """Build from flat keywords (``LLM(...)``, command-line flags).

        Raises:
            ConfigError: A keyword is not a setting, or a value is out of range.
        """
        parts: dict[str, Any] = {}
        keywords = {name: _plain(name, value) for name, value in keywords.items()}
        for part, part_class in PARTS.items():
            own = {f.name for f in fields(part_class)}
            parts[part] = part_class(**{k: keywords.pop(k) for k in list(keywords) if k in own})
        if "seed" in keywords:
            parts["seed"] = keywords.pop("seed")
        if keywords:
            names = ", ".join(sorted(keywords))
            meant = meant_setting(min(keywords), SETTINGS) or " See quire serve --help-all."
            raise ConfigError(f"[config] settings must be known; got {names}.{meant}")
        return cls(**parts)

    def of_rank(self, rank: int) -> EngineConfig:
        """Return the settings of one of the ranks of an engine."""
        memory = self.parallel.memory_of_rank(rank)
        cache = self.cache if memory is None else replace(self.cache, memory=memory)
        return replace(self, cache=cache, parallel=self.parallel.of_rank(rank))

    def __post_init__(self) -> None:
        for part in (*(getattr(self, name) for name in PARTS), self):
            check_types(part)
        at_least_one = {
            "--block-size": self.cache.block_size,
            "--max-num-seqs": self.scheduler.max_num_seqs,
            "--max-num-batched-tokens": self.scheduler.max_num_batched_tokens,
            "--max-model-len": self.model.max_model_len,
            "--num-gpu-blocks-override": self.cache.num_gpu_blocks_override,
            "--memory": self.cache.memory,
            "--kv-cache-memory-bytes": self.cache.kv_cache_memory_bytes,
            "--max-tokens-in-paged-kv-cache": self.cache.max_tokens_in_paged_kv_cache,
        }
        for flag, value in at_least_one.items():
            if value is not None and value < 1:
                raise ConfigError(f"[config] {flag} must be at least 1; got {value}.")
        if self.model.max_logprobs < -1:
            raise ConfigError(
                "[config] --max-logprobs must be -1 (no limit) or at least 0; got "
                f"{self.model.max_logprobs}."
            )
        threshold = self.scheduler.long_prefill_token_threshold
        if threshold < 0:
            raise ConfigError(
                f"[config] --long-prefill-token-threshold must be at least 0; got {threshold}."
            )
        self._check_prompt_tokens()
        self._check_quantization()
        self._check_cache()
        self.speculative.parsed()
        self.adapters.check()
        self.parallel.check()
        self.offload.check()
        self.model.pictures_per_prompt()
        for name in ("override_generation_config", "default_chat_template_kwargs"):
            self.model.json_object(name)
        if not self.scheduler.enable_chunked_prefill and self.model.max_model_len is not None:
            budget = self.scheduler.max_num_batched_tokens
            if budget < self.model.max_model_len:
                raise ConfigError(
                    "[config] without chunked prefill --max-num-batched-tokens must be at least "
                    f"--max-model-len ({self.model.max_model_len}); got {budget}. Raise it, or "
                    "keep chunked prefill on."
                )

    def _check_prompt_tokens(self) -> None:
        mixed, target = self.scheduler.mixed_prefill_tokens, self.scheduler.target_itl_ms
        if mixed is not None and mixed < 0:
            raise ConfigError(f"[config] --mixed-prefill-tokens must be at least 0; got {mixed}.")
        if target is not None and not 0 < target < math.inf:
            raise ConfigError(f"[config] --target-itl-ms must be above 0 and finite; got {target}.")
        if mixed is not None and target is not None:
            raise ConfigError(
                "[config] --mixed-prefill-tokens and --target-itl-ms must not both be given; got "
                f"{mixed} and {target}. Leave one out."
            )

    def _check_cache(self) -> None:
        self.cache.check()
        hiding = self.cache.hides_blocks
        if hiding and (self.offload.ram_bytes or self.offload.num_slow):
            raise ConfigError(
                "[config] --kv-offload-* keeps blocks that later requests find by their content; "
                f"got {hiding}, with which none is found. Leave one out."
            )

    def _check_quantization(self) -> None:
        size, overrides = self.model.quantization_group_size, self.model.overrides()
        if size is not None and self.model.quantization is None and not overrides:
            raise ConfigError(
                f"[config] --quantization-group-size needs --quantization; got {size} alone."
            )
        if size not in (None, 0, 16, 32, 64, 128):
            raise ConfigError(
                "[config] --quantization-group-size must be 16, 32, 64, 128, or 0 for whole rows; "
                f"got {size}."
            )


def _plain(name: str, value: Any) -> Any:
    """Return a keyword's value as its field holds it; what fits none is left for the checks."""
    if isinstance(value, PathLike):
        return fspath(value)
    setting = SETTINGS.get(name)
    if setting is None:
        return value
    told = setting.metadata
    if isinstance(value, str) and value in told.get("unavailable", {}):
        raise ConfigError(f"[config] {flag_name(name)} {told['unavailable'][value]}; got {value}.")
    if type(value).__module__ == "torch":  # torch.float16
        value = str(value).removeprefix("torch.")
    spellings = told.get("spellings", {})
    if not isinstance(value, bool) and str(value) in spellings:
        return spellings[str(value)]
    if told.get("is_json") and isinstance(value, dict | list):
        return json.dumps(value, default=fspath)
    if isinstance(setting.default, tuple) and isinstance(value, str | list):
        return (value,) if isinstance(value, str) else tuple(value)
    if told.get("sized") and isinstance(value, str):
        try:
            return parse_count(value)
        except ValueError:
            raise ConfigError(
                f"[config] {flag_name(name)} must be a whole number such as 4096, 4k or 8GiB; got "
                f"{value!r:.80}."
            ) from None
    return value


PARTS: dict[str, type] = {
    "model": ModelOptions,
    "cache": CacheOptions,
    "offload": OffloadOptions,
    "scheduler": SchedulerOptions,
    "speculative": SpeculativeOptions,
    "adapters": AdapterOptions,
    "parallel": ParallelOptions,
}
#: Every setting's field, by name.
SETTINGS: dict[str, Any] = {
    setting.name: setting
    for part in (*PARTS.values(), EngineConfig)
    for setting in fields(part)
    if "help" in setting.metadata
}
