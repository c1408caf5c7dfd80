"""A scripted engine for wire formats and faults, and servers on loopback ports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from quire.core.adapter_reference import AdapterReference
from quire.core.client import Client
from quire.core.engine_request import EngineRequest
from quire.core.errors import EngineDeadError, FailureKind, ModelLoadError, RequestFailure
from quire.core.model.model_config import ModelConfig
from quire.core.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.llm.async_llm import AsyncLLM
from quire.llm.engine_client import EngineProgress
from quire.llm.engine_views import SharedEngine
from quire.server.app import create_app
from quire.server.generation.served_models import OneModel
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.http import sse
from quire.server.lifecycle import Server
from quire.server.listener import address, bind
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig, ModelOptions
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.server.browser import Browser, missing, start_browser
from tests.server.chat_page import Page
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Long enough that no test's client is too slow to leave before the answer is complete.
CONTEXT = 32768


@pytest.fixture(autouse=True)
def headers_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's headers are sent after a while without a token; an error may be later than that.

    On a machine that stands still, that is: tests of refusals ask for the status.
    """
    monkeypatch.setattr(sse, "HEADERS_WITHIN_SECONDS", 60.0)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint; its tokenizer has one token per byte, so all broken texts occur."""
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(path, {**PRESETS["tiny-llama"], "max_position_embeddings": CONTEXT})
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    """The byte tokenizer with a chat template."""
    return load_tokenizer(folder)


class ScriptedEngine(SharedEngine):
    """Answers every request with the same text, byte by byte; fails when told to.

    Attributes:
        text: What is generated, then end-of-sequence.
        fail_after: Raise ``error`` after that many tokens.
        end_after: End with finish reason ``error`` after that many tokens.
        failure: Why it ends so.
        hold_after: Wait after that many tokens until ``released`` or shut down.
        num_held: Requests that have begun to wait so.
        open_requests: Ids that were started and not ended.
        params, clients: Of each request, in order.
        requests: All of them.
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
        self.failure = RequestFailure(FailureKind.ENGINE, "logits are not finite")
        self.hold_after: int | None = None
        self.num_held = 0
        self.released = threading.Event()
        self.open_requests: set[str] = set()
        self.params: list[SamplingParams] = []
        self.clients: list[Client] = []
        self.requests: list[EngineRequest] = []
        self.ended: list[str] = []
        self.dead = False
        self.state = EngineProgress(0, 0.0, 0.0, 0.0)
        self.stopped = False

    def read_texts(self, options: ModelOptions) -> tuple[Tokenizer, dict[str, Any]]:
        return self.tokenizer, self.default_sampling_params

    async def generate(self, request: EngineRequest, /) -> AsyncGenerator[RequestOutput, None]:
        request_id = request.request_id
        self.open_requests.add(request_id)
        self.params.append(request.params)
        self.clients.append(request.client)
        self.requests.append(request)
        ending = "closed"
        try:
            async for output in self._states(request_id, request.prompt_token_ids, request.params):
                ending = "finished" if output.finished else ending
                yield output
        finally:
            self.open_requests.discard(request_id)
            self.ended.append(ending)

    async def _states(
        self, request_id: str, prompt: list[int], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        eos = self.tokenizer.eos_token_id
        token_ids = [*self.tokenizer.encode(self.text), eos]
        limit = min(params.max_tokens or len(token_ids), len(token_ids))
        detokenizer = self.tokenizer.create_detokenizer(continues=True)
        now = time.monotonic()
        assert params.output_kind is RequestOutputKind.DELTA
        for count in range(1, limit + 1):
            await self._follow_script(count - 1)
            reason = None
            if self.stopped:
                reason = "abort"
            elif self.end_after == count:
                reason = "error"
            elif count == limit:
                reason = "stop" if token_ids[count - 1] == eos else "length"
            new = token_ids[count - 1 : count]
            text = detokenizer.add(new) + ("" if reason is None else detokenizer.flush())
            prompt_logprobs = None
            if params.prompt_logprobs is not None:
                first = [None, *map(self._logprobs, prompt[1:])]
                prompt_logprobs = first if count == 1 else []
            yield RequestOutput(
                request_id=request_id,
                prompt=None,
                prompt_token_ids=prompt,
                prompt_logprobs=prompt_logprobs,
                outputs=[
                    CompletionOutput(
                        index=index,
                        text=text,
                        token_ids=list(new),
                        logprobs=None if params.logprobs is None else [*map(self._logprobs, new)],
                        finish_reason=reason,
                    )
                    for index in range(params.n)
                ],
                finished=reason is not None,
                num_cached_tokens=2,
                metrics=RequestMetrics(now, now, now, time.monotonic()),
                failure=self.failure if reason == "error" else None,
            )
            if reason is not None:
                return

    def _logprobs(self, token_id: int) -> dict[int, Logprob]:
        return {token_id: Logprob(-0.5, 2), (token_id + 1) % 256: Logprob(-0.25, 1)}

    async def _follow_script(self, count: int) -> None:
        await asyncio.sleep(0)
        if self.fail_after == count:
            raise self.error
        self.num_held += self.hold_after == count
        while self.hold_after == count and not self.released.is_set() and not self.stopped:
            await asyncio.sleep(0.005)

    async def abort(self, request_id: str) -> None:
        pass

    def check_health(self) -> None:
        if self.dead:
            raise EngineDeadError("[engine] a step failed.")

    def progress(self) -> EngineProgress:
        return self.state

    def stats(self) -> dict[str, float]:
        return {
            "num_requests_running": len(self.open_requests),
            "generation_tokens": 7,
            'request_success{finished_reason="stop"}': self.ended.count("finished"),
            'request_success{finished_reason="abort"}': self.ended.count("closed"),
        }

    async def describe_cache(self) -> str:
        return "no cache"

    async def reset_prefix_cache(self) -> None:
        pass

    def read_adapter(self, name: str, folder: str) -> AdapterReference:
        raise ModelLoadError(f"[adapter] {folder} must be readable; got nothing.")

    async def shutdown(self) -> None:
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
    models = OneModel(service)
    server = Server(service.options, (models, create_app(models)), lambda models: ready.set())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert ready.wait(60)
        yield url
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def serve(engine: ScriptedEngine) -> Iterator[Callable[..., httpx2.Client]]:
    """Start the scripted engine's server with options; returns a client of it."""
    with ExitStack() as stack:

        def start(config: EngineConfig | None = None, **options: Any) -> httpx2.Client:
            settings = ServerOptions(port=0, **{"uvicorn_log_level": "warning", **options})
            service = Service(engine, config or EngineConfig(), Shared(settings))
            url = stack.enter_context(run_in_thread(service))
            return stack.enter_context(httpx2.Client(base_url=url, timeout=60))

        yield start


@pytest.fixture
def client(serve: Callable[..., httpx2.Client]) -> httpx2.Client:
    """A client of a server with default options."""
    return serve()


@dataclass
class Live:
    """A server on a loaded checkpoint.

    Attributes:
        url: Of the server.
        http: A client.
        openai: OpenAI's own client.
        service: What it serves.
    """

    url: str
    http: httpx2.Client
    openai: openai.OpenAI
    service: Service

    def metric(self, name: str, label: str = "") -> float:
        """Return a metric such as ``quire:num_requests_running``; ``label`` picks its series."""
        lines = self.http.get("/metrics").text.splitlines()
        (found,) = (line for line in lines if line.startswith(name + "{") and label in line)
        return float(found.rsplit(" ", 1)[1])

    def wait_until_running(self, num_requests: int) -> None:
        """Wait until that many sequences run."""
        self._wait(lambda: self.metric("quire:num_requests_running") >= num_requests)

    def wait_until_waiting(self, num_requests: int) -> None:
        """Wait until that many sequences wait for their first step."""
        self._wait(lambda: self.metric("quire:num_requests_waiting") >= num_requests)

    def wait_until_idle(self) -> None:
        """Wait until the engine holds no request and no block."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        self._wait(lambda: not any(self.metric(f"quire:{name}") for name in names))

    def _wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, self.http.get("/metrics").text
            time.sleep(0.002)


@contextmanager
def serve_live(config: EngineConfig, **options: Any) -> Iterator[Live]:
    """Serve a model on a free loopback port, with options of the server."""
    engine = AsyncLLM.from_config(config)
    shared = Shared(ServerOptions(port=0, uvicorn_log_level="warning", **options))
    service = Service(engine, engine.config, shared)
    with (
        run_in_thread(service) as url,
        httpx2.Client(base_url=url, timeout=60) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Live(url, http, client, service)


def _tiny(folder: Path, device: str, **settings: Any) -> EngineConfig:
    named = {"model": str(folder), "served_model_name": "tiny"}
    return EngineConfig.from_keywords(**named, device=device, threads=1, **settings)


@pytest.fixture(scope="session")
def live(folder: Path, device: str) -> Iterator[Live]:
    """One server for all tests of the real engine."""
    with serve_live(_tiny(folder, device, memory=192 * 2**20, max_num_seqs=16)) as made:
        yield made


@pytest.fixture(scope="session")
def brief(folder: Path, device: str) -> Iterator[Live]:
    """The same with little context, for tests that fill it."""
    with serve_live(_tiny(folder, device, memory=64 * 2**20, max_model_len=512)) as made:
        yield made


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    if missing():
        pytest.skip(f"not installed: {missing()}")
    with start_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def scripted(chromium: Browser, client: httpx2.Client) -> Page:
    """The page on the scripted engine."""
    page = Page(chromium, str(client.base_url))
    page.open()
    return page
