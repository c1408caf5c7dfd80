"""Generation settings in the names of transformers 5.24, and the sampling settings they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.checkpoints.config_fields import read_json
from quire.core.errors import ConfigError
from quire.core.sampling_params import SamplingParams
from quire.pretrained.foreign_options import ForeignOption, done, idle, read_options, refused

#: Tokens that are generated where nothing says how many, and the ``top_k`` of sampling.
NEW_TOKENS, TOP_K = 20, 50
_BEAMS = "is a setting of beam search, which generate() does not do; see LLM.beam_search"
_SCORES = "is not returned: LLM.generate gives log-probabilities"
_SAMPLER = "is not among the ways of sampling"
_ASSISTANT = "is set when the model is loaded, as speculative_config"
_CODE = "is code, which is not run between steps"
_ENCODER = "is a setting of models with an encoder"
_CACHE = "the KV cache is always there, in blocks"

OPTIONS: dict[str, ForeignOption] = {
    "max_new_tokens": done(),
    "max_length": done(),
    "min_new_tokens": done(),
    "min_length": done(),
    "do_sample": done(),
    "temperature": done(),
    "top_k": done(),
    "top_p": done(),
    "min_p": done(),
    "repetition_penalty": done(),
    "num_return_sequences": done(),
    "eos_token_id": done(),
    "pad_token_id": done(),
    "bos_token_id": done(),
    "stop_strings": done(),
    "bad_words_ids": done(),
    "suppress_tokens": done(),
    # Not of transformers, which takes torch's seed.
    "seed": done(),
    "use_cache": idle(_CACHE, True),
    "cache_implementation": idle(_CACHE),
    "cache_config": idle(_CACHE),
    "max_cache_len": idle(_CACHE),
    "prefill_chunk_size": idle("prompts are divided as the engine is set"),
    "compile_config": idle("there is no code to compile"),
    "disable_compile": idle("there is no code to compile"),
    "continuous_batching_config": idle("requests are always batched so"),
    "low_memory": idle("it is a setting of a cache that is not used"),
    "max_time": refused("is no limit of LLM.generate"),
    "num_beams": refused(_BEAMS, None, 1),
    "num_beam_groups": refused(_BEAMS, None, 1),
    "early_stopping": refused(_BEAMS, None, False),
    "length_penalty": refused(_BEAMS, None, 1.0),
    "diversity_penalty": refused(_BEAMS, None, 0.0),
    "constraints": refused(_BEAMS),
    "force_words_ids": refused(_BEAMS),
    "typical_p": refused(_SAMPLER, None, 1.0),
    "top_h": refused(_SAMPLER),
    "epsilon_cutoff": refused(_SAMPLER, None, 0.0),
    "eta_cutoff": refused(_SAMPLER, None, 0.0),
    "penalty_alpha": refused(_SAMPLER, None, 0.0),
    "dola_layers": refused(_SAMPLER),
    "guidance_scale": refused(_SAMPLER, None, 1.0),
    "no_repeat_ngram_size": refused(_SAMPLER, None, 0),
    "sequence_bias": refused(_SAMPLER),
    "renormalize_logits": refused(_SAMPLER, None, False),
    "exponential_decay_length_penalty": refused(_SAMPLER),
    "begin_suppress_tokens": refused(_SAMPLER),
    "forced_bos_token_id": refused(_SAMPLER),
    "forced_eos_token_id": refused(_SAMPLER),
    "remove_invalid_values": refused(_SAMPLER, None, False),
    "token_healing": refused(_SAMPLER, None, False),
    "watermarking_config": refused(_SAMPLER),
    "encoder_repetition_penalty": refused(_ENCODER, None, 1.0),
    "encoder_no_repeat_ngram_size": refused(_ENCODER, None, 0),
    "decoder_start_token_id": refused(_ENCODER),
    "output_attentions": refused(_SCORES, None, False),
    "output_hidden_states": refused(_SCORES, None, False),
    "output_scores": refused(_SCORES, None, False),
    "output_logits": refused(_SCORES, None, False),
    "return_dict_in_generate": refused("is not done: tokens are returned", None, False),
    "use_mtp": refused(_ASSISTANT, None, False),
    "speculation_type": refused(_ASSISTANT),
    "is_assistant": refused(_ASSISTANT, None, False),
    "num_assistant_tokens": refused(_ASSISTANT, None, 20),
    "num_assistant_tokens_schedule": refused(_ASSISTANT, None, "constant"),
    "assistant_confidence_threshold": refused(_ASSISTANT, None, 0.4),
    "assistant_early_exit": refused(_ASSISTANT),
    "assistant_lookbehind": refused(_ASSISTANT, None, 10),
    "target_lookbehind": refused(_ASSISTANT, None, 10),
    "assistant_ensemble_weight": refused(_ASSISTANT),
    "prompt_lookup_num_tokens": refused(_ASSISTANT),
    "max_matching_ngram_size": refused(_ASSISTANT),
}
#: Without ``do_sample`` they have nothing to do.
OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
#: Of ``generate`` itself.
ARGUMENTS: dict[str, ForeignOption] = {
    "inputs": done(),
    "input_ids": done(),
    "attention_mask": done(),
    "generation_config": done(),
    "token_type_ids": idle("models are decoders"),
    "tokenizer": idle("stop_strings are found by the model's own"),
    "synced_gpus": refused("must be False: a process has the whole model", None, False),
    "logits_processor": refused(_CODE, None, []),
    "stopping_criteria": refused(_CODE, None, []),
    "prefix_allowed_tokens_fn": refused(_CODE),
    "custom_generate": refused(_CODE),
    "streamer": refused("is not done: AsyncLLM streams"),
    "assistant_model": refused(_ASSISTANT),
    "negative_prompt_ids": refused(_SAMPLER),
    "negative_prompt_attention_mask": refused(_SAMPLER),
}


class GenerationConfig:
    """Settings of :meth:`PretrainedModel.generate`; each one is an attribute, None if not given.

    Args:
        **options: Options of :data:`OPTIONS`.

    Raises:
        ConfigError: An option is unknown, or asks for what is not done.
    """

    def __init__(self, **options: Any) -> None:
        self._values = read_options("GenerationConfig", OPTIONS, options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in OPTIONS:
            raise AttributeError(f"generation has no setting {name!r}")
        return self._values[name]

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> GenerationConfig:
        """Read ``generation_config.json`` of a folder; without one nothing is set."""
        path = Path(folder) / "generation_config.json"
        stored = read_json(path) if path.is_file() else {}
        if not stored.get("do_sample") and not stored.get("temperature"):
            # There 0 says that nothing is drawn, not how to draw where a caller wants it.
            stored.pop("temperature", None)
        return cls(**{name: value for name, value in stored.items() if name in OPTIONS})

    def with_options(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Return settings some of which are others; None leaves one as it is."""
        made = GenerationConfig()
        given = {name: value for name, value in options.items() if value is not None}
        made._values |= self._values | given
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that are given."""
        return {name: value for name, value in self._values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """The plan of a generation, from its settings.

    Attributes:
        settings: All that are given.
        ends: Ids that end a sequence instead of the model's own; None for the model's.
    """

    settings: GenerationConfig
    ends: tuple[int, ...] | None = None

    def params(self, num_prompt_tokens: int) -> SamplingParams:
        """Return the sampling settings of a prompt.

        Raises:
            ConfigError: Settings contradict each other.
            InvalidSamplingParamsError: A value is out of range.
        """
        given = self.settings
        sampled = bool(given.do_sample)
        count = given.num_return_sequences or 1
        if sampled and given.temperature is not None and not given.temperature > 0:
            raise ConfigError(
                f"[generate] temperature must be over 0 with do_sample; got {given.temperature}."
            )
        if not sampled and count > 1:
            raise ConfigError(
                "[generate] num_return_sequences must be 1 without do_sample: all would be the "
                f"same; got {count}."
            )
        least, most = self._lengths(num_prompt_tokens)
        drawn: dict[str, Any] = {"temperature": 0.0}
        if sampled:
            drawn = {
                "temperature": 1.0 if given.temperature is None else float(given.temperature),
                "top_k": TOP_K if given.top_k is None else given.top_k,
                "top_p": 1.0 if given.top_p is None else float(given.top_p),
                "min_p": float(given.min_p or 0.0),
            }
        return SamplingParams(
            **drawn,
            n=count,
            max_tokens=most,
            min_tokens=least,
            repetition_penalty=float(given.repetition_penalty or 1.0),
            ignore_eos=self.ends is not None,
            stop_token_ids=self.ends,
            stop=given.stop_strings,
            bad_words_token_ids=tuple(map(tuple, given.bad_words_ids or ())),
            logit_bias=dict.fromkeys(given.suppress_tokens or (), float("-inf")) or None,
            seed=given.seed,
        )

    def _lengths(self, num_prompt_tokens: int) -> tuple[int, int]:
        """Return the fewest and the most tokens that are generated."""
        given = self.settings
        most = given.max_new_tokens
        if most is None:
            most = NEW_TOKENS if given.max_length is None else given.max_length - num_prompt_tokens
        if most < 1:
            raise ConfigError(
                f"[generate] max_length must be over the prompt's {num_prompt_tokens} tokens; got "
                f"{given.max_length}. Give max_new_tokens."
            )
        least = given.min_new_tokens
        if least is None:
            least = max(0, (given.min_length or 0) - num_prompt_tokens)
        return least, most
