"""Completion requests turned into engine requests, for every route that continues texts."""

from __future__ import annotations

from msgspec import UNSET

from quire.core.errors import RequestError
from quire.core.sampling_params import SamplingParams
from quire.protocol.openai.completion import DEFAULT_MAX_TOKENS, CompletionRequest
from quire.server.generation.prompts.tokenized_prompts import (
    PromptLimit,
    decode_texts,
    encode_texts,
)
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission

#: Settings of a request, once for each of its prompts: ids, and characters of texts and grammars.
MAX_SETTINGS_BYTES = 32 * 2**20


async def prepare_completion(
    service: Service,
    request: ApiRequest[CompletionRequest],
    param: str = "prompt",
    default_max_tokens: int = DEFAULT_MAX_TOKENS,
) -> tuple[Submission, list[str]]:
    """Check and tokenize the prompts.

    Args:
        service: The served model.
        request: The request.
        param: The field that holds the prompt, for errors.
        default_max_tokens: Output limit where the request states none.

    Returns:
        The engine's requests, and the prompts as text, for the echo.

    Raises:
        RequestError: The request is wrong.
    """
    body = request.body
    body.check()
    tokenizer = service.engine.tokenizer
    limit = PromptLimit(service.engine.max_model_len, param)
    special, client_id = body.add_special_tokens is not False, request.client.client_id
    given = body.prompts()
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    prompts = [prompt for prompt in given if not isinstance(prompt, str)]  # all are of one kind
    if texts:
        prompts = await encode_texts(tokenizer, texts, special, limit, client_id)
    elif body.echo:
        texts = await decode_texts(tokenizer, prompts, limit.num_tokens, client_id)
    else:
        texts = [""] * len(prompts)
    made: dict[int | None, SamplingParams] = {}  # by limit: lists of settings may be long
    asked = []
    for ids in prompts:
        most = _limit(service, body, len(ids), default_max_tokens)
        if most not in made:
            made[most] = _params(service, body, most)
            _check_repeated(made[most], len(prompts), param)
        asked.append((ids, made[most]))
    return Submission.create(request, param, asked), texts


def _limit(
    service: Service, body: CompletionRequest, num_prompt_tokens: int, default_max_tokens: int
) -> int | None:
    """Return how many tokens may follow a prompt."""
    asked = body.max_tokens
    if asked is UNSET:
        room = max(1, service.engine.max_model_len - num_prompt_tokens)
        asked = min(default_max_tokens, room)
    elif asked == 0:
        # With echo, for the prompt's log-probabilities; the engine makes at least one token.
        asked = 1
    return service.output_limit(asked, num_prompt_tokens)


def _params(service: Service, body: CompletionRequest, limit: int | None) -> SamplingParams:
    defaults = dict(service.engine.default_sampling_params)
    if body.echo and body.logprobs is not None:
        defaults["prompt_logprobs"] = body.logprobs
    return body.sampling_params(defaults, limit, body.logprobs)


def _check_repeated(params: SamplingParams, num_prompts: int, param: str) -> None:
    """Refuse many prompts with large settings: the engine keeps these once for each prompt.

    Raises:
        RequestError: The settings of all prompts together are too large.
    """
    size = params.num_bytes * num_prompts
    if num_prompts > 1 and size > MAX_SETTINGS_BYTES:
        raise RequestError(
            f"[{param}] prompts with their settings may take {MAX_SETTINGS_BYTES} bytes; got "
            f"{num_prompts} with settings of {params.num_bytes} bytes each. Send fewer at a time.",
            param,
        )
