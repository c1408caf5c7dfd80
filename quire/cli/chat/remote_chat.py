"""A model of a running server that answers in a conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from quire.cli.chat.chat_session import MAX_TOKENS, Thought
from quire.cli.server_connection import connect, events, read_answer, request
from quire.core.plurals import counted


class RemoteChat:
    """See :class:`quire.cli.chat.chat_session.ChatModel`.

    Args:
        base_url: The server's URL.
        model: The name that requests use.
        fields: Further fields of each request.
    """

    def __init__(self, base_url: str, model: str, fields: dict[str, Any] | None = None) -> None:
        self._fields = fields or {}
        self._base_url = base_url
        self._model = model
        self._summary = "no tokens"
        self.num_tokens = 0
        self.was_cut = False
        self.defaults: dict[str, Any] = self._own_limit()

    def answer(
        self,
        messages: list[dict[str, Any]],
        sampling: dict[str, Any],
        stopped: Callable[[], bool],
    ) -> Iterator[str]:
        body = {name: value for name, value in sampling.items() if value is not None}
        body |= {"model": self._model, "messages": messages, "stream": True, **self._fields}
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        limit: int | None = body.get("max_tokens")
        if limit == self.defaults.get("max_tokens", MAX_TOKENS):
            # Sent, a limit that people did not choose would have a question refused that leaves
            # less room in a short context.
            body.pop("max_tokens", None)
        if messages[-1]["role"] == "assistant":
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        started, first, num_pieces, reason = time.perf_counter(), None, 0, None
        usage = None
        connection, prefix = connect(self._base_url)
        with closing(connection):  # leaving early ends the request
            response = request(connection, "POST", f"{prefix}/v1/chat/completions", body)
            for event in events(response):
                usage = event.usage or usage
                for choice in event.choices:
                    reason = choice.finish_reason or reason
                    delta = choice.delta
                    if delta is not None and (
                        thought := delta.reasoning_content or delta.reasoning
                    ):
                        yield Thought(thought)
                    text = "" if delta is None else delta.content or ""
                    if text:
                        num_pieces += 1
                        first = first or time.perf_counter()
                    yield text
                written = 0 if usage is None else usage.completion_tokens
                if limit is not None and written >= limit and reason is None:
                    reason = "length"
                    break
                if stopped():
                    break
        last = time.perf_counter()
        # Without a figure of the server's, as of a stopped answer, a piece is about a token.
        self.num_tokens = num_pieces if usage is None else usage.completion_tokens
        self.was_cut = reason == "length"
        self._summary = counted(self.num_tokens, "token")
        if first is not None:
            self._summary += f", first after {first - started:.2f} s"
            if self.num_tokens > 1 and last > first:
                self._summary += f", {(self.num_tokens - 1) / (last - first):.1f} tok/s"
        if self.was_cut:
            self._summary += ", cut at the token limit"

    def _own_limit(self) -> dict[str, Any]:
        """Return the ``max_tokens`` of a preset, which the server would take where none is sent."""
        connection, prefix = connect(self._base_url)
        with closing(connection):
            shown = request(connection, "POST", f"{prefix}/api/show", {"model": self._model})
            parameters = read_answer(shown).get("parameters") or ""
        lines = dict(line.split(maxsplit=1) for line in parameters.splitlines())
        return {"max_tokens": int(lines["num_predict"])} if "num_predict" in lines else {}

    def summary(self) -> str:
        return self._summary

    def describe(self) -> str:
        for model in self._models():
            if self._model in (model["id"], *model["aliases"]):
                context = model["max_model_len"]
                told = f", {counted(context, 'token')} of context" if context else ""
                return f"{self._model}: {model['status']['value']}{told}"
        return f"{self._model} at {self._base_url}"

    def stats(self) -> str:
        return "\n".join(f"{m['id']:40} {m['status']['value']}" for m in self._models())

    def _models(self) -> list[dict[str, Any]]:
        connection, prefix = connect(self._base_url)
        with closing(connection):
            found: list[dict[str, Any]] = read_answer(
                request(connection, "GET", f"{prefix}/models")
            )["data"]
        return found
