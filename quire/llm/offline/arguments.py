"""Arguments of ``LLM``'s methods: one value for all prompts, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, TypeAlias, TypedDict

from quire.core.errors import RequestError
from quire.core.sampling_params import SamplingParams
from quire.core.suggestions import did_you_mean
from quire.llm.engine_client import Prompt
from quire.llm.requests.adapter_references import LoRARequest

Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None


class ChatOptions(TypedDict, total=False):
    """The rules by which a conversation becomes a prompt, under vLLM's names.

    Attributes:
        chat_template: A Jinja source in place of the model's own.
        chat_template_content_format: ``auto``, ``string`` or ``openai``; the template decides.
        add_generation_prompt: Whether to ask for a new message of the assistant; the default.
        continue_final_message: Whether to extend the last message instead;
            ``add_generation_prompt`` must be False.
        tools: JSON schemas of functions, in OpenAI's form.
        chat_template_kwargs: More variables of the template.
        mm_processor_kwargs: An empty dict: pictures are prepared as the model's files say.
    """

    chat_template: str | None
    chat_template_content_format: Literal["auto", "string", "openai"]
    add_generation_prompt: bool
    continue_final_message: bool
    tools: Sequence[dict[str, Any]] | None
    chat_template_kwargs: dict[str, Any] | None
    mm_processor_kwargs: dict[str, Any] | None


def read_chat_options(options: ChatOptions) -> tuple[str | None, dict[str, Any]]:
    """Return the template that a call brings, and the arguments of its rendering.

    Raises:
        TypeError: An option is unknown.
        RequestError: ``mm_processor_kwargs`` asks for something.
    """
    given: dict[str, Any] = {**options}
    known = ChatOptions.__annotations__
    check_keywords("chat", {name: given[name] for name in given if name not in known}, known)
    given.pop("chat_template_content_format", None)
    if asked := given.pop("mm_processor_kwargs", None):
        raise RequestError(
            f"[mm_processor_kwargs] would change pictures; got {asked!r:.80}. Edit "
            "preprocessor_config.json.",
            "mm_processor_kwargs",
        )
    template = given.pop("chat_template", None)
    return template, given | (given.pop("chat_template_kwargs", None) or {})


def as_list(prompts: Any) -> list[Prompt]:
    """Return the prompts; a list of integers is one."""
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        return [prompts]
    items = list(prompts)
    return [items] if items and all(isinstance(item, int) for item in items) else items


def as_params(
    given: Params, num_prompts: int, defaults: Callable[[], SamplingParams]
) -> list[SamplingParams]:
    """Return the settings of each prompt.

    Args:
        given: Settings for all prompts, or one per prompt; None for the model's own.
        num_prompts: Number of prompts.
        defaults: The function that makes the model's own settings.

    Raises:
        RequestError: The values are not settings, or not one for each prompt.
    """
    if given is None:
        given = defaults()
    if isinstance(given, SamplingParams):
        return [given] * num_prompts
    return _per_prompt("sampling_params", given, SamplingParams, num_prompts)


def as_adapters(
    given: LoRARequest | Sequence[LoRARequest | None] | None, num_prompts: int
) -> list[LoRARequest | None]:
    """Return the adapter of each prompt, None for none.

    Raises:
        RequestError: The values are not adapters, or not one for each prompt.
    """
    if given is None or isinstance(given, LoRARequest):
        return [given] * num_prompts
    return _per_prompt("lora_request", given, (LoRARequest, NoneType), num_prompts)


#: Advice for a caller that gave something else.
_EXAMPLES = {
    "sampling_params": "SamplingParams(temperature=0)",
    "lora_request": "LoRARequest(name, 1, folder)",
}


def _per_prompt(
    name: str, given: Any, kind: type | tuple[type, ...], num_prompts: int
) -> list[Any]:
    """Return a list that has one of a kind for each prompt."""
    example = _EXAMPLES[name]
    if not isinstance(given, list | tuple) or not all(isinstance(one, kind) for one in given):
        raise RequestError(
            f"[{name}] must be {example.partition('(')[0]}, or a list of them; got {given!r:.80}. "
            f"Write {example}.",
            name,
        )
    if len(given) != num_prompts:
        raise RequestError(
            f"[{name}] must be one, or one per prompt ({num_prompts}); got {len(given)}.", name
        )
    return list(given)


def is_conversation(messages: Sequence[Any]) -> bool:
    """Return whether messages are of one conversation rather than several conversations.

    Raises:
        RequestError: The messages are text, a message alone, or no list.
    """
    first = messages[0] if isinstance(messages, Sequence) and messages else messages
    if isinstance(first, str):
        raise RequestError(
            f"[messages] must be a list of messages; got text. Write "
            f'[{{"role": "user", "content": {first!r:.40}}}].',
            "messages",
        )
    if not isinstance(messages, Sequence):
        kind = "a message alone" if isinstance(messages, Mapping) else f"{messages!r:.80}"
        raise RequestError(
            f"[messages] must be a list of messages; got {kind}. Write "
            '[{"role": "user", "content": ...}].',
            "messages",
        )
    return not messages or isinstance(first, dict)


def check_keywords(method: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse keywords that a method does not have, with what to write.

    Raises:
        TypeError: ``given`` has such keywords.
    """
    for name in given:
        if name in SamplingParams.__dataclass_fields__:
            meant = f" Give sampling_params=SamplingParams({name}=...)."
        elif name == "prompt_token_ids":
            meant = ' Give prompts=[{"prompt_token_ids": ids}].'
        else:
            meant = did_you_mean(name, known)
        raise TypeError(f"LLM.{method}() has no option {name!r}.{meant}")
