"""``POST /generate`` and ``/generate_stream`` in TGI's shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.routing import Route

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
from quire.server.generation.completion_prompt import prepare_completion
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.sse import TGI_EVENTS
from quire.server.openai.logprobs import LOWEST, TokenNames
from quire.text.tokenizer import Tokenizer


class Tgi(CompatEndpoint[TgiRequest]):
    """The ASGI app of either route."""

    kind = TgiRequest
    id_prefix = "tgi"
    form = TGI_EVENTS

    async def prepare(self, request: ApiRequest[TgiRequest]) -> tuple[TgiTexts, Submission]:
        completion = request.with_body(request.body.completion_request())
        submission, _ = await prepare_completion(
            self.service, completion, "inputs", DEFAULT_MAX_NEW_TOKENS
        )
        return TgiTexts(self.service.engine.tokenizer, request.body), submission


class TokenPieces:
    """Splits a text into the pieces that its tokens add.

    Args:
        tokenizer: Of the served model.
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
        tokenizer: Of the served model.
        body: The request.
    """

    form = TGI_EVENTS

    def __init__(self, tokenizer: Tokenizer, body: TgiRequest) -> None:
        self._names = TokenNames(tokenizer, False)
        self._asked = body.parameters or TgiParameters()
        self._echo = body.inputs if self._asked.return_full_text else ""
        self._tokens = TokenPieces(tokenizer)
        self._texts: list[str] = []
        self._index = 0

    def whole(self, outputs: list[RequestOutput]) -> TgiAnswer:
        (output,) = outputs
        (completion,) = output.outputs
        text = completion.text
        details: TgiDetails | UnsetType = UNSET
        if self._asked.details:
            tokens = self._tokens.split(completion, text)
            prefill = self._prefill(output)
            details = self._details(completion, len(tokens), tokens=tokens, prefill=prefill)
        return TgiAnswer(generated_text=self._echo + text, details=details)

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


def routes(service: Service) -> list[Route]:
    """Return the routes."""
    return [
        Route("/generate", Tgi(service, False), methods=["POST"]),
        Route("/generate_stream", Tgi(service, True), methods=["POST"]),
    ]
