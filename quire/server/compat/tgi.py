"""TGI's routes: ``POST /generate``, ``/generate_stream`` and ``/``, and ``GET /info``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.tgi import (
    DEFAULT_MAX_NEW_TOKENS,
    TgiAnswer,
    TgiDetails,
    TgiEvent,
    TgiParameters,
    TgiRequest,
    TgiToken,
)
from quire.server.compat.base import CompatAnswer, CompatEndpoint
from quire.server.generation.model_routes import ByModel, get_route
from quire.server.generation.prompts.completion_prompt import prepare_completion
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import json_response
from quire.server.http.sse import TGI_EVENTS
from quire.server.openai.logprobs import LOWEST, TokenNames
from quire.text.tokenizers.tokenizer import Tokenizer


class Tgi(CompatEndpoint[TgiRequest]):
    """The ASGI app of one of the routes for texts.

    Args:
        service: The served model.
        streams: Whether the route streams its answers; None, of ``/``, where the body says it.
    """

    kind = TgiRequest
    id_prefix = "tgi"
    form = TGI_EVENTS

    async def prepare(self, request: ApiRequest[TgiRequest]) -> tuple[TgiTexts, Submission]:
        completion = request.with_body(request.body.completion_request())
        submission, _ = await prepare_completion(
            self.service, completion, "inputs", DEFAULT_MAX_NEW_TOKENS
        )
        listed = self._streams is None
        return TgiTexts(self.service.engine.tokenizer, request.body, listed), submission


class TokenPieces:
    """Splits a text into the pieces that its tokens add.

    Args:
        tokenizer: The served model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._names = TokenNames(tokenizer, False)
        self._detokenizer = tokenizer.create_detokenizer(continues=True)
        self._num_characters = 0

    def split(self, completion: CompletionOutput, text: str | None) -> list[TgiToken]:
        """Return the tokens of a delta; ``text`` is the whole text when they are the last.

        The pieces of all tokens that are not special make up the text. So the last token gets what
        is left of it: a character that is not complete, and nothing after a stop string.
        """
        tokens: list[TgiToken] = []
        positions = completion.logprobs or []
        for token_id, position in zip(completion.token_ids, positions, strict=True):
            piece = self._detokenizer.add([token_id])
            if text is not None and len(tokens) == len(positions) - 1:
                piece = text[self._num_characters :]
            self._num_characters += len(piece)
            special = self._tokenizer.is_special(token_id)
            logprob = max(position[token_id].logprob, LOWEST)
            shown = piece or (self._names.name(token_id) if special else "")
            tokens.append(TgiToken(token_id, shown, logprob, special))
        return tokens


class TgiTexts(CompatAnswer):
    """Formats one answer.

    Args:
        tokenizer: The served model's tokenizer.
        body: The request.
        listed: Whether a whole answer is a list with one element.
    """

    form = TGI_EVENTS

    def __init__(self, tokenizer: Tokenizer, body: TgiRequest, listed: bool) -> None:
        self._listed = listed
        self._names = TokenNames(tokenizer, False)
        self._asked = body.parameters or TgiParameters()
        self._echo = body.inputs if self._asked.return_full_text else ""
        self._tokens = TokenPieces(tokenizer)
        self._texts: list[str] = []
        self._index = 0

    def whole(self, outputs: list[RequestOutput]) -> TgiAnswer | list[TgiAnswer]:
        (output,) = outputs
        (completion,) = output.outputs
        text = completion.text
        details: TgiDetails | UnsetType = UNSET
        if self._asked.details:
            tokens = self._tokens.split(completion, text)
            prefill = self._prefill(output)
            details = self._details(completion, len(tokens), tokens=tokens, prefill=prefill)
        answer = TgiAnswer(generated_text=self._echo + text, details=details)
        return [answer] if self._listed else answer

    def pieces(self, output: RequestOutput, completion: CompletionOutput) -> Iterator[TgiEvent]:
        self._texts.append(completion.text)
        text = "".join(self._texts) if output.finished else None
        tokens = self._tokens.split(completion, text)
        for number, token in enumerate(tokens, start=1):
            self._index += 1
            event = TgiEvent(index=self._index, token=token)
            if text is not None and number == len(tokens):
                event.generated_text = self._echo + text
                if self._asked.details:
                    length = len(output.prompt_token_ids)
                    event.details = self._details(completion, self._index, input_length=length)
            yield event

    def _details(self, completion: CompletionOutput, num_tokens: int, **fields: Any) -> TgiDetails:
        return TgiDetails(
            finish_reason=_finish_reason(completion),
            generated_tokens=num_tokens,
            seed=self._asked.seed,
            **fields,
        )

    def _prefill(self, output: RequestOutput) -> list[TgiToken]:
        if not self._asked.decoder_input_details:
            return []
        positions = output.prompt_logprobs or []
        return [
            TgiToken(
                token_id,
                self._names.name(token_id),
                None if position is None else max(position[token_id].logprob, LOWEST),
                UNSET,
            )
            for token_id, position in zip(output.prompt_token_ids, positions, strict=True)
        ]


def _finish_reason(completion: CompletionOutput) -> str:
    if completion.finish_reason != "stop":
        return completion.finish_reason or "length"
    return "stop_sequence" if isinstance(completion.stop_reason, str) else "eos_token"


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def show_info(service: Service, request: Request) -> Response:
        return json_response(_info(service))

    return [
        Route("/", ByModel(models, Tgi), methods=["POST"]),
        get_route(models, "/info", show_info),
        Route("/generate", ByModel(models, Tgi, False), methods=["POST"]),
        Route("/generate_stream", ByModel(models, Tgi, True), methods=["POST"]),
    ]


def _info(service: Service) -> dict[str, Any]:
    """Return what TGI tells of itself, as far as it has a meaning here."""
    config, longest = service.config, service.engine.max_model_len
    return {
        "model_id": service.model_names[0],
        "model_sha": None,
        "model_dtype": service.engine.model_config.dtype,
        "model_device_type": config.parallel.device,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": service.options.max_num_queued_reqs,
        "max_best_of": 1,
        "max_input_tokens": longest - 1,
        "max_input_length": longest - 1,
        "max_total_tokens": longest,
        "max_batch_size": config.scheduler.max_num_seqs,
        "max_client_batch_size": 1,
        "router": "quire",
        "version": quire.__version__,
        "sha": None,
        "docker_label": None,
    }
