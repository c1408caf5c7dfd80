"""The engine's loop: requests whose grammars take their time hold up no other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.core.client import Client
from quire.core.engine_request import EngineRequest
from quire.core.errors import ModelLoadError, RequestError
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.llm.engine_args import EngineArgs
from quire.llm.grammars.compile_thread import GrammarThread
from quire.llm.process import engine_loop
from quire.llm.process.child import start_engine_process
from quire.llm.process.engine_loop import EngineLoop
from quire.llm.process.engine_messages import (
    Abort,
    Add,
    Done,
    Refused,
    Start,
    Step,
    from_engine,
    to_engine,
)
from quire.llm.process.message_socket import MessageSocket
from quire.llm.text_engine import TextEngine
from quire.settings.config import EngineConfig
from quire.system import child_process as child_module
from tools.random_checkpoint import PRESETS, random_checkpoint

CHOICE = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputs(choice=["aa", "ab"]))
PLAIN = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


class SlowCompiler:
    """Compiles nothing, when it is told to; refuses what it is told to."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.error: Exception | None = None
        self.compiled: list[str] = []

    def knows(self, constraint: StructuredOutputs) -> bool:
        return constraint.key in self.compiled

    def compile(self, constraint: StructuredOutputs) -> None:
        assert self.released.wait(60)
        self.compiled.append(constraint.key)
        if self.error is not None:
            raise self.error


class Server:
    """The other end of a loop's socket."""

    def __init__(self, engine: TextEngine, compiler: SlowCompiler) -> None:
        ours, theirs = socket.socketpair()
        self.link = MessageSocket(ours, from_engine)
        loop = EngineLoop(engine.engine, MessageSocket(theirs, to_engine), compiler)

        def run() -> None:
            with theirs, suppress(EOFError, OSError):
                loop.run()

        self._messages = self._read()
        self.thread = threading.Thread(target=run)
        self.thread.start()

    def add(self, request_id: str, params: SamplingParams) -> None:
        request = EngineRequest(request_id, [5, 6, 7], params, client=Client("c"))
        self.link.send(Add(request))

    def messages(self) -> Iterator[Any]:
        """Yield what has not been yielded; one message may come together with the next."""
        yield from iter(lambda: next(self._messages), None)

    def _read(self) -> Iterator[Any]:
        while True:
            self.link.wait(60)
            yield from self.link.receive()

    def ending(self, request_id: str) -> str | Refused:
        """Read until a request ends; return how."""
        for message in self.messages():
            if isinstance(message, Refused) and message.request_id == request_id:
                return message
            for output in message.outputs if isinstance(message, Step) else ():
                if output.request_id == request_id and output.finish_reason is not None:
                    return str(output.finish_reason)
        raise AssertionError


@pytest.fixture
def compiler() -> SlowCompiler:
    return SlowCompiler()


@pytest.fixture
def server(
    folder: Path, device: str, small: dict[str, Any], compiler: SlowCompiler
) -> Iterator[Server]:
    engine = TextEngine(EngineConfig.from_keywords(model=str(folder), device=device, **small))
    server = Server(engine, compiler)
    yield server
    compiler.released.set()
    server.link.connection.close()
    server.thread.join(60)
    assert not server.thread.is_alive()
    assert not engine.engine.has_unfinished_requests()


def test_others_run_while_a_grammar_is_compiled(server: Server, compiler: SlowCompiler) -> None:
    server.add("slow", CHOICE)
    server.add("plain", PLAIN)
    assert server.ending("plain") == "length"
    assert compiler.compiled == []
    compiler.released.set()  # the loop is idle now, and is woken
    assert server.ending("slow") == "stop"


def test_a_request_ends_while_its_grammar_is_compiled(
    server: Server, compiler: SlowCompiler
) -> None:
    server.add("slow", CHOICE)
    server.link.send(Abort("slow", 7))
    assert server.ending("slow") == "abort"
    assert next(m for m in server.messages() if isinstance(m, Done)).ticket == 7
    compiler.released.set()
    server.add("next", CHOICE)
    assert server.ending("next") == "stop"


def test_many_requests_at_once_hold_up_no_step(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 that came in one body were all queued before the next token of others."""
    monkeypatch.setattr(engine_loop, "MESSAGE_SECONDS", 0.0)
    requests = [EngineRequest(name, [5, 6, 7], PLAIN, client=Client("c")) for name in "abcd"]
    data = [msgspec.msgpack.encode(Add(request)) for request in requests]
    server.link.connection.sendall(b"".join(len(d).to_bytes(4, "little") + d for d in data))
    first = next(m for m in server.messages() if isinstance(m, Step) and m.outputs)
    assert [output.request_id for output in first.outputs] == ["a"]
    assert server.ending("d") == "length"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RequestError("[x] no."), "[x] no."),
        (MemoryError("none left"), "failed (MemoryError)"),
        (ModelLoadError("[load] /srv/some/tokenizer.json is gone."), "failed (ModelLoadError)"),
    ],
)
def test_a_grammar_that_fails_is_its_requests_end_alone(
    server: Server, compiler: SlowCompiler, error: Exception, told: str
) -> None:
    """Clients were told where the server keeps its files, too."""
    compiler.error = error
    compiler.released.set()
    server.add("bad", CHOICE)
    refused = server.ending("bad")
    assert isinstance(refused, Refused) and told in refused.message
    assert "/srv" not in refused.message
    server.add("plain", PLAIN)
    assert server.ending("plain") == "length"


def test_requests_come_back_in_order_and_withdrawn_ones_do_not(compiler: SlowCompiler) -> None:
    thread: GrammarThread[str] = GrammarThread(compiler)
    for name in "abc":
        thread.submit(name, StructuredOutputs(regex=name), name.upper())
    assert thread.take() == []
    assert (thread.withdraw("b"), thread.withdraw("b")) == ("B", None)
    compiler.released.set()
    found: list[tuple[str, RequestError | None]] = []
    while len(found) < 2:
        thread.wake.setblocking(True)
        thread.wake.recv(1)
        thread.wake.setblocking(False)
        found += thread.take()
    assert found == [("A", None), ("C", None)]
    assert compiler.compiled == ["regex:a", "regex:c"]
    thread.close()


def test_a_server_that_goes_while_it_loads_is_no_failed_load(
    tmp_path: Path,
    device: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model unloaded while its engine was being restarted left a traceback in the log."""
    random_checkpoint(tmp_path, PRESETS["tiny-llama"])
    config = EngineArgs(tmp_path, device=device, threads=1).config
    child = start_engine_process()
    start = Start(str(tmp_path), config, (256,), str(tmp_path))
    MessageSocket(child.socket, from_engine).send(start)
    monkeypatch.setattr(child_module, "SHUTDOWN_GRACE_SECONDS", 60)  # however busy the machine is
    assert child.end(at_once=False) == 0
    assert "Traceback" not in capfd.readouterr().err
