"""``LLM`` as programs hold it: several threads, its end, and what type checkers see of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import EngineDeadError

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


RIGHT = """
from pathlib import Path
from quire import LLM, AsyncEngineArgs, AsyncLLMEngine, KvCacheConfig, SamplingParams

llm = LLM("m", memory="8GiB", dtype="half", max_model_len="4k", tensor_parallel_size=1)
other = LLM(Path("m"), kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=0.85), seed=3)
text: str = llm.generate(["a"], SamplingParams(max_tokens=3))[0].outputs[0].text
vector: list[float] = llm.embed("a")[0].outputs.embedding
score: float = llm.score("a", ["b"])[0].outputs.score
engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="m", enforce_eager=True))


async def run() -> None:
    async for output in engine.generate("a", SamplingParams(), request_id="1"):
        print(output.finished, output.request_id)
"""
WRONG = {
    'LLM("m", max_num_seqs="many")': 'Argument "max_num_seqs" to "LLM" has incompatible type "str"',
    'LLM("m", dtype="int3")': 'Argument "dtype" to "LLM" has incompatible type',
    'LLM("m", max_pages=3)': 'Unexpected keyword argument "max_pages"',
    'LLM("m").generate("a")[0].texts': '"RequestOutput" has no attribute "texts"',
}


def test_type_checkers_know_the_package(tmp_path: Path) -> None:
    """As from an installed package: without its py.typed mypy would see nothing."""
    script = tmp_path / "script.py"
    lines = [f"from quire import LLM\n{code}" for code in WRONG]
    script.write_text(RIGHT + "\n".join(["", *lines, ""]))
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(script)],
        env={"MYPYPATH": "", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    errors = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert len(errors) == len(WRONG), found.stdout + found.stderr
    assert all(words in line for words, line in zip(WRONG.values(), errors, strict=True)), errors
    assert (ROOT / "quire" / "py.typed").is_file()
