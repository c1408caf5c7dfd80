"""Settings of other engines that scripts pass and that have nothing to do here.

Each is taken with a line on why it does nothing, as long as the answers stay what they are without
it; one that would change them, or who may ask, is refused. Flags and keywords of ``LLM`` share the
tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from quire.core.errors import ConfigError
from quire.core.quantization_names import QUANTIZATIONS as OURS
from quire.core.quantization_names import QuantizationName, StoredName

_ALWAYS = "is how it is always done here"
_NOT_DIVIDED = "is not available: a context is not divided over ranks"
_COLLECTIVES = "changes nothing: ranks take the quickest way that there is"
_NO_GRAPHS = "changes nothing: there are no graphs to capture and no code to compile"
_NO_TRANSFER = "is not available: see --kv-offload-bytes and --disaggregate"
_NO_EVENTS = "is not available: blocks are told of at /metrics alone"
_FILES = "changes nothing: the files say what they are"
_NO_TEXTS = "is not available: texts of requests and answers are never logged"
_NO_CODE = "names code that would run in the engine, which it does not do"
_ONE_METHOD = "changes nothing: there is one way to compute attention on each machine"
_PREFIXES = "changes nothing: blocks are named by BLAKE2b"


@dataclass(frozen=True, slots=True)
class KnownSetting:
    """A setting that is taken and does nothing, or is refused by name.

    Attributes:
        why: What follows the setting in the notice: why it changes nothing, or is refused.
        neutral: Values, as text, that ask for nothing.
        short: Other spellings of its flag.
        is_switch: It is on or off.
        least: Its value is a whole number of at least this; None: it is something else.
        is_list: It may be given several times.
        is_refused: A value that asks for something is an error.
    """

    why: str
    neutral: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    is_switch: bool = False
    least: int | None = None
    is_list: bool = False
    is_refused: bool = False

    def notice(self, shown_name: str, shown: str, value: Any) -> str | None:
        """Return the line on a given value; None when it asks for nothing.

        Args:
            shown_name: The setting as the user wrote it.
            shown: Setting and value as the user wrote them.
            value: None, False and empty ones ask for nothing.

        Raises:
            ConfigError: The value cannot be, or asks for what would change the answers.
        """
        if self.least is not None and value is not None and not _is_count(value, self.least):
            raise ConfigError(
                f"[config] {shown_name} must be a whole number of at least {self.least}; got "
                f"{value!r:.80}."
            )
        if value is None or value is False or value in ("", (), [], {}):
            return None
        if str(value) in self.neutral:
            return None
        if self.is_refused:
            raise ConfigError(f"[config] {shown_name} {self.why}; got {value!r:.80}. Leave it out.")
        return f"{shown} {self.why}."


def _switch(why: str, *short: str) -> KnownSetting:
    return KnownSetting(why, short=short, is_switch=True)


def _value(why: str, *neutral: str, short: tuple[str, ...] = ()) -> KnownSetting:
    return KnownSetting(why, neutral, short)


def _number(why: str, *neutral: str) -> KnownSetting:
    return KnownSetting(why, neutral, least=0)


def _width(short: str) -> KnownSetting:
    return KnownSetting(_NOT_DIVIDED, ("1",), (short,), least=1)


def _refused(
    why: str, *neutral: str, short: tuple[str, ...] = (), is_list: bool = False
) -> KnownSetting:
    return KnownSetting(why, neutral, short, is_list=is_list, is_refused=True)


_ROUNDED = "weights are floats, and rounded at load"
_FLOATS = "weights are floats, and stay so"
#: Other engines' quantizations and what is done with floats instead: name of ours, and why.
QUANTIZATIONS: dict[str, tuple[QuantizationName | None, str]] = {
    **dict.fromkeys(get_args(StoredName), (None, _FLOATS)),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round"), ("int4", _ROUNDED)),
    "fp8": ("int8", "the same bytes, and activations are rounded to 8 bits as well"),
    "bitsandbytes": ("nf4", _ROUNDED),
}
#: What files say where it is another name.
_METHODS = {"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "modelopt"}


def settle_quantization(
    asked: QuantizationName | StoredName | None, stored: str
) -> tuple[QuantizationName | None, str]:
    """Return what weights are rounded to at load, and what there is to say of it.

    Args:
        asked: The setting.
        stored: The method of the checkpoint; empty for floats.

    Returns:
        A quantization of ours, or None; and a line for the log, empty for nothing.

    Raises:
        ConfigError: The checkpoint has another method.
    """
    if asked is None or asked in OURS:
        return asked, ""
    if _METHODS.get(asked, asked) == stored:
        return None, ""
    if stored:
        raise ConfigError(
            f"[config] --quantization must be what the checkpoint has, {stored}; got {asked}. "
            "Leave it out."
        )
    ours, why = QUANTIZATIONS[asked]
    return (
        ours,
        f"--quantization {asked} {f'is {ours} here' if ours else 'changes nothing'}: {why}.",
    )


#: Of an engine: flags of every command that loads one, keywords of ``LLM`` and ``EngineArgs``.
ENGINE: dict[str, KnownSetting] = {
    "n_gpu_layers": _value(
        "changes nothing: all layers are on the processor", short=("-ngl", "--gpu-layers")
    ),
    "flash_attn": _value(_ONE_METHOD, "auto", "on", short=("-fa",)),
    "jinja": _switch(_ALWAYS),
    "enforce_eager": _switch(_NO_GRAPHS),
    "compilation_config": _value(_NO_GRAPHS, short=("-cc",)),
    "optimization_level": _value(_NO_GRAPHS, short=("-O",)),
    "performance_mode": _value("changes nothing: a step takes what is there", "balanced"),
    "max_seq_len_to_capture": _number(_NO_GRAPHS),
    "use_v2_block_manager": _switch("changes nothing: there is one block manager"),
    "trust_remote_code": _switch("changes nothing: code of a checkpoint is never run"),
    "disable_log_stats": _switch("changes nothing: statistics are at /metrics, not in the log"),
    "async_scheduling": _switch("is not available"),
    "scheduler_reserve_full_isl": _switch(_ALWAYS),
    "prefill_schedule_interval": _number("changes nothing: prompts start at any step", "1"),
    "watermark": _value("changes nothing: a prompt starts when its blocks are free", "0", "0.0"),
    "num_scheduler_steps": _number("changes nothing: a step is one token of each", "1"),
    "max_num_active_seqs": _number("changes nothing: --max-num-seqs is the limit"),
    "stream_interval": _number("changes nothing: it is a setting of quire serve", "1"),
    "decode_context_parallel_size": _width("-dcp"),
    "prefill_context_parallel_size": _width("-pcp"),
    "disable_custom_all_reduce": _switch(_COLLECTIVES),
    "worker_use_ray": _switch("is --distributed-executor-backend ray here"),
    "swap_space": _value("changes nothing: see --kv-offload-bytes", "0"),
    "preemption_mode": _value("changes nothing: the cheaper one, see --kv-offload-bytes"),
    "cpu_offload_gb": _value("changes nothing: weights are in the machine's memory", "0", "0.0"),
    "kv_offloading_backend": _value("changes nothing: there is one", "native"),
    "kv_transfer_config": _value(_NO_TRANSFER),
    "kv_events_config": _value(_NO_EVENTS),
    "prefix_caching_hash_algo": _value(_PREFIXES, "sha256"),
    "attention_config": _value(_ONE_METHOD, short=("-ac",)),
    "attention_backend": _value(_ONE_METHOD),
    "disable_cascade_attn": _switch(_ONE_METHOD),
    "load_format": _value(_FILES, "auto", "safetensors"),
    "tokenizer_mode": _value(_FILES, "auto"),
    "skip_tokenizer_init": _switch("changes nothing: prompts may be text or token ids"),
    "config_format": _value(_FILES, "auto"),
    "model_impl": _value("changes nothing: there is one implementation", "auto"),
    "runner": _value("changes nothing: every model generates and embeds", "auto", "generate"),
    "convert": _value("changes nothing: every model generates and embeds", "auto", "none"),
    "task": _value("changes nothing: every model generates and embeds", "auto", "generate"),
    "download_dir": _value("changes nothing: HF_HOME says where downloaded models are kept"),
    "tokenizer_revision": _value("changes nothing: the tokenizer comes with --revision"),
    "code_revision": _value("changes nothing: code of a checkpoint is never run"),
    "hf_overrides": _refused("would change the model: edit its config.json"),
    "rope_scaling": _refused("would change the model: edit its config.json"),
    "rope_theta": _refused("would change the model: edit its config.json"),
    "logprobs_mode": _refused("must be raw_logprobs", "raw_logprobs"),
    "logits_processors": _refused(_NO_CODE, is_list=True),
    "lora_modules": KnownSetting(
        "is of quire serve: elsewhere a call names its adapter (lora_request)", is_list=True
    ),
    "lora_dtype": _value("changes nothing: adapters keep the type of their files", "auto"),
    "fully_sharded_loras": _switch("changes nothing: a rank holds what its own outputs need"),
    "mm_processor_kwargs": _refused("would change pictures: edit preprocessor_config.json"),
    "mm_processor_cache_gb": _value("changes nothing: pictures are decoded anew", "4", "4.0"),
    "structured_outputs_config": _value(
        "changes nothing: grammars are compiled by llguidance (but see --disable-any-whitespace)"
    ),
    "guided_decoding_backend": _value("changes nothing: grammars are compiled by llguidance"),
    "enable_sleep_mode": _switch("is not available"),
    "collect_detailed_traces": _value("changes nothing: a trace has a span for each stage"),
    "enable_log_requests": _switch(_ALWAYS),
    "disable_log_requests": _switch("changes nothing: quire serve alone logs requests"),
}
#: Of a server: flags of ``quire serve`` only.
SERVER: dict[str, KnownSetting] = {
    "grpc_port": _number("is not available: the server speaks HTTP"),
    "api_server_count": _value("changes nothing: one process serves", "1", short=("-asc",)),
    "middleware": _refused(_NO_CODE, is_list=True),
    "tool_parser_plugin": _refused(_NO_CODE),
    "tool_server": _refused("must be left to clients: tools are run by them"),
    "response_role": _refused("must be assistant", "assistant"),
    "allow_credentials": _switch("changes nothing: keys come in a header, not in cookies"),
    "allowed_methods": _value("changes nothing: pages may use what routes take", '["*"]', "*"),
    "allowed_headers": _value("changes nothing: pages may send any header", '["*"]', "*"),
    "disable_access_log_for_endpoints": KnownSetting(
        "changes nothing: see --disable-uvicorn-access-log", is_list=True
    ),
    "disable_fastapi_docs": _switch("changes nothing: there is /openapi.json, without pages"),
    "h11_max_incomplete_event_size": _number("changes nothing: a head may have 64 KiB"),
    "h11_max_header_count": _number("changes nothing: a head may have 200 headers"),
    "chat_template_content_format": _value(
        "changes nothing: parts of a message are text and joined", "auto", "string"
    ),
    "trust_request_chat_template": _switch("is not available: clients send no templates"),
    "return_tokens_as_token_ids": _switch("is not available: a request asks for it by that name"),
    "enable_log_outputs": _switch(_NO_TEXTS),
    "max_log_len": _number(_NO_TEXTS),
    "enable_request_id_headers": _switch(_ALWAYS),
    "enable_prompt_tokens_details": _switch(_ALWAYS),
    "enable_per_request_metrics": _switch("is not available: the log has a line per request"),
    "enable_server_load_tracking": _switch(_ALWAYS),
    "enable_tokenizer_info_endpoint": _switch("is not available"),
    "fingerprint_mode": _value("changes nothing: it names version and settings", "full"),
    "custom_histogram_buckets": _value("is not available: buckets are fixed"),
    "show_hidden_metrics_for_version": _value("changes nothing: no metric is hidden"),
    "watchdog_config": _value("is not available: see --watchdog-timeout"),
    "log_level": _value("changes nothing: QUIRE_LOG_LEVEL sets it", "info"),
    "logging_config": _value("is not available: see --log-format and QUIRE_LOG_LEVEL"),
    "fail_on_environ_validation": _switch("changes nothing: wrong QUIRE_ variables always fail"),
}


def flag_name(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _is_count(value: Any, least: int) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and int(value) >= least
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
