"""A scripted engine for wire formats and faults, and servers on loopback ports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError
from quire.core.model_config import ModelConfig
from quire.core.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.lifecycle import Server, address, bind
from quire.server.options import ServerOptions
from quire.server.service import Service
from quire.text.tokenizer import Tokenizer, load_tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]


def write_tokenizer(folder: Path) -> None:
    """One token per byte and three special ones: every text and every broken text occurs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The byte tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(folder)


class ScriptedEngine:
    """Answers every request with the same text, byte by byte; fails when told to.

    Attributes:
        text: What is generated, then end-of-sequence.
        fail_after: Raise ``error`` behind so many tokens.
        end_after: End with finish reason ``error`` behind so many tokens.
        hold_after: Wait behind so many tokens until ``released`` or shut down.
        open_requests: Ids that were started and not ended.
        params: Of each request, in order.
        ended: How each request ended: ``finished`` or ``closed``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.model_config = ModelConfig(
            architecture="scripted",
            vocab_size=tokenizer.vocab_size,
            hidden_size=1,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            intermediate_size=1,
            max_position_embeddings=256,
        )
        self.max_model_len = 256
        self.default_sampling_params: dict[str, Any] = {"temperature": 0.0}
        self.text = "Grüße 😀!"
        self.fail_after: int | None = None
        self.error: Exception = RuntimeError("a secret detail")
        self.end_after: int | None = None
        self.hold_after: int | None = None
        self.released = threading.Event()
        self.open_requests: set[str] = set()
        self.params: list[SamplingParams] = []
        self.ended: list[str] = []
        self.dead = False
        self.stopped = False

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield one state per token."""
        self.open_requests.add(request_id)
        self.params.append(sampling_params)
        ending = "closed"
        try:
            async for output in self._states(prompt["prompt_token_ids"], sampling_params):
                ending = "finished" if output.finished else ending
                yield output
        finally:
            self.open_requests.discard(request_id)
            self.ended.append(ending)

    async def _states(
        self, prompt: list[int], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        eos = self.tokenizer.eos_token_id
        token_ids = [*self.tokenizer.encode(self.text), eos]
        limit = min(params.max_tokens or len(token_ids), len(token_ids))
        now = time.monotonic()
        for count in range(1, limit + 1):
            await self._follow_script(count - 1)
            reason = None
            if self.stopped:
                reason = "abort"
            elif self.end_after == count:
                reason = "error"
            elif count == limit:
                reason = "stop" if token_ids[count - 1] == eos else "length"
            shown = token_ids[:count]
            yield RequestOutput(
                request_id="",
                prompt=None,
                prompt_token_ids=prompt,
                prompt_logprobs=None
                if params.prompt_logprobs is None
                else [None, *map(self._logprobs, prompt[1:])],
                outputs=[
                    CompletionOutput(
                        index=index,
                        text=self._text(shown, reason is not None),
                        token_ids=shown,
                        logprobs=None
                        if params.logprobs is None
                        else list(map(self._logprobs, shown)),
                        finish_reason=reason,
                    )
                    for index in range(params.n)
                ],
                finished=reason is not None,
                num_cached_tokens=2,
                metrics=RequestMetrics(now, now, now, time.monotonic()),
                error="logits are not finite" if reason == "error" else None,
            )
            if reason is not None:
                return

    def _text(self, token_ids: list[int], final: bool) -> str:
        detokenizer = self.tokenizer.create_detokenizer(continues=True)
        return detokenizer.add(token_ids) + (detokenizer.flush() if final else "")

    def _logprobs(self, token_id: int) -> dict[int, Logprob]:
        return {token_id: Logprob(-0.5, 2), (token_id + 1) % 256: Logprob(-0.25, 1)}

    async def _follow_script(self, count: int) -> None:
        await asyncio.sleep(0)
        if self.fail_after == count:
            raise self.error
        while self.hold_after == count and not self.released.is_set() and not self.stopped:
            await asyncio.sleep(0.005)

    def check_health(self) -> None:
        """Raise when ``dead``."""
        if self.dead:
            raise EngineDeadError("[engine] a step failed.")

    def stats(self) -> dict[str, float]:
        """A gauge, a counter and a labelled counter."""
        return {
            "num_requests_running": len(self.open_requests),
            "generation_tokens": 7,
            'request_success{finished_reason="stop"}': self.ended.count("finished"),
            'request_success{finished_reason="abort"}': self.ended.count("closed"),
        }

    async def shutdown(self) -> None:
        """End everything with ``abort``."""
        self.stopped = True


@pytest.fixture
def engine(tokenizer: Tokenizer) -> ScriptedEngine:
    """A fresh scripted engine."""
    return ScriptedEngine(tokenizer)


@contextmanager
def run_in_thread(service: Service) -> Iterator[str]:
    """Serve on a free loopback port; the block gets the URL."""
    listener = bind(service.options)
    url = address(listener)
    ready = threading.Event()
    server = Server(service, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert ready.wait(10)
        yield url
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def serve(engine: ScriptedEngine) -> Iterator[Callable[..., httpx2.Client]]:
    """Start the scripted engine's server with options; returns a client of it."""
    with ExitStack() as stack:

        def start(config: EngineConfig | None = None, **options: Any) -> httpx2.Client:
            settings = ServerOptions(port=0, uvicorn_log_level="warning", **options)
            service = Service(engine, config or EngineConfig(), settings)
            url = stack.enter_context(run_in_thread(service))
            return stack.enter_context(httpx2.Client(base_url=url, timeout=20))

        yield start


@pytest.fixture
def client(serve: Callable[..., httpx2.Client]) -> httpx2.Client:
    """A client of a server with default options."""
    return serve()
