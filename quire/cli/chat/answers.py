"""Runs prompts on an engine in this process and follows their text as it grows; prints nothing."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quire.core.errors import EngineDeadError
from quire.core.outputs import RequestOutput
from quire.core.plurals import counted
from quire.core.sampling_params import SamplingParams
from quire.llm.engine_client import Prompt
from quire.llm.progress import loading_bar
from quire.llm.text_engine import TextEngine
from quire.settings.config import EngineConfig
from quire.system import env

_REQUEST_IDS = map(str, itertools.count())


@dataclass(slots=True)
class GrowingAnswer:
    """One prompt's output so far, and when it came (seconds on the performance counter)."""

    output: RequestOutput | None = None
    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float | None = None

    @property
    def text(self) -> str:
        """All text generated so far."""
        return self.output.outputs[0].text if self.output else ""

    @property
    def num_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.output.outputs[0].token_ids) if self.output else 0

    @property
    def finished(self) -> bool:
        """Whether nothing more arrives."""
        return self.output is not None and self.output.finished

    def update(self, output: RequestOutput) -> None:
        """Take the newest output."""
        before, self.output = self.num_tokens, output
        if self.num_tokens > before:
            self.last_token = time.perf_counter()
            self.first_token = self.first_token or self.last_token

    def summary(self) -> str:
        """Say how much came how fast, on one line."""
        if self.first_token is None or self.last_token is None:
            return "no tokens"
        line = f"{counted(self.num_tokens, 'token')}, "
        line += f"first after {self.first_token - self.started:.2f} s"
        seconds = self.last_token - self.first_token
        if self.num_tokens > 1 and seconds > 0:
            line += f", {(self.num_tokens - 1) / seconds:.1f} tok/s"
        if self.output and self.output.outputs[0].finish_reason == "length":
            line += ", cut at the token limit"
        return line


@contextmanager
def loaded_engine(config: EngineConfig) -> Iterator[TextEngine]:
    """Load a model, with a progress bar for large ones; log warnings only, unless told to."""
    if env.get("QUIRE_LOG_LEVEL") is None:
        logging.getLogger("quire").setLevel(logging.WARNING)
    with loading_bar() as on_progress:
        engine = TextEngine(config, on_progress=on_progress)
    try:
        yield engine
    finally:
        engine.shutdown()


def follow(
    engine: TextEngine,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    fit_output: bool,
    attributes: Mapping[str, Any] = MappingProxyType({}),
) -> Generator[list[GrowingAnswer], None, None]:
    """Run all prompts together; yield their answers after each step, in the prompts' order.

    Closing the iterator ends the requests that still run. With ``fit_output`` an answer may be
    shorter than ``max_tokens`` where the context ends. ``attributes`` are further ones of requests,
    as of :meth:`TextEngine.prepare`.

    Raises:
        RequestError: A prompt is refused.
        EngineDeadError: A step failed.
    """
    answers: dict[str, GrowingAnswer] = {}
    try:
        for prompt in prompts:
            request_id = next(_REQUEST_IDS)
            request = engine.prepare(request_id, prompt, params, **attributes)
            engine.submit(engine.fit_output(request) if fit_output else request)
            answers[request_id] = GrowingAnswer()
        while not all(answer.finished for answer in answers.values()):
            for output in engine.step():
                answers[output.request_id].update(output)
                if output.error is not None:
                    raise EngineDeadError(output.error)
            yield list(answers.values())
    finally:
        for request_id, answer in answers.items():
            if not answer.finished:
                engine.abort_request(request_id)
