"""A request on its way to the engine: first as an API's endpoint has it, then as prompts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from quire.core.adapter_reference import AdapterReference
from quire.core.beam_search_params import BeamSearchParams
from quire.core.client import Client
from quire.core.engine_request import EngineRequest, Picture, salt_keys
from quire.core.errors import PromptTooLongError, RequestError
from quire.core.sampling_params import SamplingParams
from quire.llm.requests.params import check_generates
from quire.protocol.generation import GenerationRequest
from quire.protocol.request_body import RequestBody, StreamableBody
from quire.server.access.authentication import ApiKey, client_of
from quire.server.generation.service import Service
from quire.server.observability.request_record import RequestRecord

T = TypeVar("T", bound=RequestBody)
B = TypeVar("B", bound=RequestBody)

#: Output tokens that a request is reckoned to take which states no limit; more are counted as they
#: come.
UNSTATED_OUTPUT = 1024
#: Of all prompts of a request: each is a request of its own to the engine at every token.
MAX_BEAMS = 512
#: Log-probabilities, and tokens of prompts, that one answer may hold: each takes some hundred bytes
#: until it is written.
MAX_ENTRIES = 2**22
#: Clients may send an id twice.
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest(Generic[T]):
    """A decoded request, and what is known of its sender.

    Attributes:
        body: The request's body.
        model: The served name that it stands for.
        response_id: Id of the answer; the engine's ids derive from it.
        record: The request's record, where its course is noted.
        api_key: The API key that was sent, where the server has keys.
        cache_keys: Keys of the cache; only requests with the same ones share cached blocks.
        deadline: The time at which it ends with ``timeout``, on the monotonic clock.
        adapter: The adapter that ``model`` names.
        stream: Whether the answer is a stream.
        stream_interval: Tokens per event of the stream, at least.
    """

    body: T
    model: str
    response_id: str
    record: RequestRecord
    api_key: ApiKey | None = None
    cache_keys: tuple[str, ...] = ()
    deadline: float | None = None
    adapter: AdapterReference | None = None
    stream: bool = False
    stream_interval: int = 1

    @classmethod
    def accept(
        cls,
        service: Service,
        id_prefix: str,
        body: T,
        record: RequestRecord,
        api_key: ApiKey | None,
        timeout: float | None,
    ) -> ApiRequest[T]:
        """Join a body with what is known of its sender.

        Args:
            service: The served model.
            id_prefix: First part of the answer's id.
            body: The request's body.
            record: The request's record.
            api_key: The API key that was sent.
            timeout: Seconds that it may take.

        Raises:
            RequestError: The body asks for a stream and this server sends none, or for text and
                the model generates none.
            ApiError: 404, the body names a model that is not served.
        """
        streamable = body if isinstance(body, StreamableBody) else StreamableBody()
        if streamable.stream and not service.options.decoupled:
            raise RequestError(
                "[stream] this server answers in one piece (decoupled: false); got a request that "
                "streams. Send stream: false, or start the server without --no-decoupled.",
                "stream",
            )
        if isinstance(body, StreamableBody):
            check_generates(service.engine.model_config)
        request_id = body.request_id or streamable.rid or record.request_id
        model = service.resolve_model(body.model)
        return cls(
            body=body,
            model=model,
            adapter=service.adapters.get(model),
            response_id=f"{id_prefix}-{request_id}",
            record=record,
            api_key=api_key,
            cache_keys=_cache_keys(service, api_key),
            deadline=None if timeout is None else record.started + timeout,
            stream=bool(streamable.stream),
            stream_interval=streamable.stream_interval or service.options.stream_interval,
        )

    def with_body(self, body: B) -> ApiRequest[B]:
        """Return the request in another shape."""
        return replace(self, body=body)  # type: ignore[arg-type, return-value]

    @property
    def client(self) -> Client:
        """The client on whose behalf the request runs."""
        return client_of(self.api_key)


def _cache_keys(service: Service, api_key: ApiKey | None) -> tuple[str, ...]:
    """Return what keeps the blocks of a key from those of others, where they are to be kept apart.

    No ``cache_salt`` of a request is equal to it.
    """
    if api_key is None or service.options.prefix_cache_isolation == "none":
        return ()
    return (f"key:{api_key.digest.hex()}",)


@dataclass(frozen=True, slots=True)
class Submission:
    """An endpoint's requests to the engine.

    Attributes:
        request: The API request that they come from.
        engine_requests: One per prompt.
        param: Request field that holds the prompts, for errors.
        beam_searches: Settings of the search for answers to each prompt; empty where tokens are
            drawn.
    """

    request: ApiRequest[Any]
    engine_requests: list[EngineRequest]
    param: str
    beam_searches: tuple[BeamSearchParams, ...] = ()

    @classmethod
    def create(
        cls,
        request: ApiRequest[Any],
        param: str,
        prompts: Iterable[tuple[list[int], SamplingParams]],
        pictures: Sequence[Picture] = (),
    ) -> Submission:
        """Ask for an answer to each prompt, given as token ids with its sampling settings.

        Args:
            request: A request whose body has ``priority`` and ``cache_salt``.
            param: The field that holds the prompts.
            prompts: Prompts and their settings; at least one.
            pictures: Pictures of each prompt.

        Raises:
            RequestError: A beam search is not possible, or too many beams are asked for.
        """
        body, number = request.body, next(_numbers)
        engine_requests = [
            EngineRequest(
                f"{request.response_id}-{number}-{index}",
                token_ids,
                params,
                priority=body.priority or 0,
                extra_keys=(*request.cache_keys, *salt_keys(body.cache_salt)),
                pictures=tuple(pictures),
                deadline=request.deadline,
                client=replace(request.client, place=index),
                is_whole=not request.stream,
            )
            for index, (token_ids, params) in enumerate(prompts)
        ]
        adapter = request.adapter
        if adapter is not None:
            engine_requests = [one.with_adapter(adapter) for one in engine_requests]
        beam_searches: tuple[BeamSearchParams, ...] = ()
        if isinstance(body, GenerationRequest) and body.use_beam_search:
            beam_searches = tuple(body.beam_search(one.params) for one in engine_requests)
            num_beams = sum(search.beam_width for search in beam_searches)
            if len(beam_searches) > 1 and num_beams > MAX_BEAMS:
                raise RequestError(
                    f"[n] all prompts together may have {MAX_BEAMS} beams; got {num_beams}. Send "
                    "fewer prompts at a time.",
                    "n",
                )
        return cls(request, engine_requests, param, beam_searches)

    def with_second_texts(self, starts: Sequence[int | None]) -> Submission:
        """Return the same, each prompt's second text beginning at one of ``starts``."""
        pairs = zip(self.engine_requests, starts, strict=True)
        return replace(self, engine_requests=[replace(one, second_text=at) for one, at in pairs])

    def check(self, service: Service) -> None:
        """Refuse settings that would be ignored, or be found wrong once other prompts run.

        Raises:
            PromptTooLongError: A prompt is too long; the message has the form that clients parse.
            RequestError: A setting has no effect on this server, or the answer would be larger
                than a server may hold.
        """
        priority = self.request.body.priority
        if priority and service.config.scheduler.scheduling_policy != "priority":
            raise RequestError(
                "[priority] needs a server started with --scheduling-policy priority; "
                f"got {priority}.",
                "priority",
            )
        limit, param = service.engine.max_model_len, self.param
        for request in self.engine_requests:
            num_prompt_tokens, params = len(request.prompt_token_ids), request.params
            asked = max(params.max_tokens or 1, params.min_tokens)
            asked = 0 if params.pooling is not None else asked
            if num_prompt_tokens + asked > limit:
                raise PromptTooLongError(
                    f"This model's maximum context length is {limit} tokens. However, you "
                    f"requested {num_prompt_tokens + asked} tokens ({num_prompt_tokens} in the "
                    f"{param}, {asked} in the completion). Please reduce the length of the {param} "
                    "or completion.",
                    param,
                )
        self._check_answer_size(limit, service.engine.model_config.vocab_size)

    def _check_answer_size(self, longest: int, vocab_size: int) -> None:
        """Refuse an answer with too many log-probabilities; a stream has a prompt's at a time.

        Raises:
            RequestError: ``param`` is the field that asks for them.
        """
        body = self.request.body
        shown = getattr(body, "echo", None) or getattr(body, "return_token_ids", None)
        entries = [
            _num_entries(one, longest, bool(shown), vocab_size) for one in self.engine_requests
        ]
        if self.request.stream:  # what is generated is sent as it comes
            most = max((echoed for echoed, _ in entries), default=0)
        else:
            most = sum(map(sum, entries))
        if most > MAX_ENTRIES:
            params = self.engine_requests[0].params
            names = ("logprobs", "prompt_logprobs")
            param = next((name for name in names if getattr(params, name) is not None), "n")
            raise RequestError(
                f"[{param}] an answer may hold {MAX_ENTRIES} log-probabilities and tokens of "
                f"prompts; got up to {most}. Ask for fewer prompts or sequences at a time.",
                param,
            )


def _num_entries(
    request: EngineRequest, longest: int, is_shown: bool, vocab_size: int
) -> tuple[int, int]:
    """Return how many entries an answer has for a prompt, and for what follows it, at most.

    Args:
        request: The engine's request for one prompt.
        longest: Tokens of the context.
        is_shown: Whether each sequence repeats the prompt.
        vocab_size: Number of log-probabilities that -1 asks for.
    """
    params, num_prompt_tokens = request.params, len(request.prompt_token_ids)
    room = max(1, longest - num_prompt_tokens)
    num_tokens = min(room, UNSTATED_OUTPUT if params.max_tokens is None else params.max_tokens)
    of_prompt, of_output = (
        0 if num_top is None else 1 + (vocab_size if num_top < 0 else num_top)
        for num_top in (params.prompt_logprobs, params.logprobs)
    )
    return params.n * num_prompt_tokens * (of_prompt + is_shown), params.n * num_tokens * of_output
