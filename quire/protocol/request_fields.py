"""Lists of a generation request's fields: honoured, refused or harmless; not their types.

Tier 1, supported: the fields of the request structs. Tier 2, refused: known elsewhere and able to
change the output, so anything but a neutral value is a 400 that names the field. Harmless: known,
and unable to change the output. Tier 3, unknown: accepted and reported back by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from quire.core.errors import RequestError

#: Refused fields with the values that ask for nothing; null always does.
REFUSED: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "guided_whitespace_pattern": (),
    "logprob_token_ids": ([],),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "documents": ([],),
    "chat_template": (),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "thinking_token_budget": (),
    "separate_reasoning": (True,),
    "repetition_detection": (),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "watermarking": (),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "stop_regex": ([], ""),
    "no_stop_trim": (False,),
    "lora_path": (),
    "extra_key": (),
    "data_parallel_rank": (),
    "n_predict": (-1,),
    "repeat_penalty": (1.0,),
    "typical_p": (1.0,),
    "mirostat": (0,),
    "dry_multiplier": (0.0,),
    "xtc_probability": (0.0,),
}

#: Known fields that cannot change the output.
HARMLESS = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prediction", "session_id",
        "spaces_between_special_tokens", "media_io_kwargs", "mm_processor_kwargs",
        "stream_reasoning", "cache_prompt", "id_slot", "guided_decoding_backend",
        "max_tool_calls",  # of tools that only OpenAI runs
    }
)  # fmt: skip

_HINTS = {
    "tools": "Use chat completions.",
    "functions": "Use tools.",
    "function_call": "Use tool_choice.",
    "best_of": "It must be absent or equal to n.",
    "chat_template": "Start the server with --chat-template instead.",
    "truncate_prompt_tokens": "Prompts are never truncated; shorten it before sending.",
    "repeat_penalty": "Use repetition_penalty.",
    "no_stop_trim": "Use include_stop_str_in_output.",
    "n_predict": "Use max_tokens.",
    "extra_key": "Use cache_salt.",
}


def find_ignored(
    body: Mapping[str, Any],
    supported: frozenset[str],
    refused: Mapping[str, tuple[Any, ...]],
    path: str = "",
) -> list[str]:
    """Return the unknown fields of ``body`` in the order sent.

    Args:
        body: The request's top-level fields, or those of an object in it.
        supported: Fields of the request's struct.
        refused: Fields of tier 2 with their neutral values.
        path: Text before the names that are returned and raised: ``parameters.``.

    Raises:
        RequestError: A refused field asks for something.
    """
    ignored = []
    for name, value in body.items():
        if name in supported or name in HARMLESS:
            continue
        if name == "best_of":
            # It once meant "generate more than n and choose"; only best_of == n can be honoured.
            neutral: tuple[Any, ...] = (body.get("n") or 1,)
        elif name in refused:
            neutral = refused[name]
        else:
            ignored.append(path + name)
            continue
        if value is not None and value not in neutral:
            hint = _HINTS.get(name, "Leave it out.")
            shown = msgspec.json.encode(value)[:80].decode(errors="replace")
            raise RequestError(
                f"[{path}{name}] is not supported by this server; got {shown}. {hint}", path + name
            )
    return ignored
