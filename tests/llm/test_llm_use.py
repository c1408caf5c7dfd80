"""``LLM`` as programs hold it: several threads, its end, and what type checkers see of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import EngineDeadError
from tools import typed_users

ROOT = Path(__file__).parents[2]
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)


def test_threads_take_turns(llm: LLM) -> None:
    """The second thread was told to step until it was done, by an error made for other callers."""
    prompts = [f"thread {index}" for index in range(6)]
    alone = [llm.generate(prompt, GREEDY)[0].outputs for prompt in prompts]
    begin = threading.Barrier(len(prompts))

    def ask(prompt: str) -> object:
        begin.wait()
        return llm.generate(prompt, GREEDY)[0].outputs

    with ThreadPoolExecutor(len(prompts)) as threads:
        assert list(threads.map(ask, prompts)) == alone


def test_after_its_end_a_call_says_so(create_llm: Callable[..., LLM]) -> None:
    llm = create_llm()
    assert llm.generate("a", GREEDY)
    llm.shutdown()
    llm.shutdown()
    for call in (
        lambda: llm.generate("a", GREEDY),
        lambda: llm.generate([], GREEDY),
        lambda: llm.embed("a"),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.engine.add_request("1", "a", GREEDY),
        lambda: llm.engine.step(),
    ):
        with pytest.raises(EngineDeadError, match="it was shut down. Load the model again."):
            call()
    assert llm.get_tokenizer().encode("a")


def test_type_checkers_know_the_package() -> None:
    """``scripts/check`` has mypy read programs that use the package; it takes too long for here."""
    assert "python -m tools.typed_users" in (ROOT / "scripts" / "check").read_text()
    assert set(typed_users.WRONG) and (ROOT / "quire" / "py.typed").is_file()
