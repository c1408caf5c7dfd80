"""What a type checker says of programs that use the package; ``scripts/check`` runs it.

The programs are typed strictly and read as users' are: from outside, by the package's ``py.typed``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
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


def mypy(script: Path) -> str:
    """Return what mypy says of a program outside the repository."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ""]
    found = subprocess.run(
        [*command, "--cache-dir", str(ROOT / ".mypy_cache" / "users"), str(script)],
        # As from an installed package: without its py.typed mypy would see nothing.
        env={"MYPYPATH": "", "PYTHONPATH": str(ROOT), "PATH": os.defpath},
        cwd=script.parent,
        capture_output=True,
        text=True,
    )
    return found.stdout + found.stderr


def problems() -> list[str]:
    """Return what mypy should have said and did not, or said and should not have."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        lines = [f"from quire import LLM\n{code}" for code in WRONG]
        script.write_text(RIGHT + "\n".join(["", *lines, ""]))
        said = mypy(script)
    errors = [line for line in said.splitlines() if ": error:" in line]
    if len(errors) != len(WRONG):
        return [said]
    pairs = zip(WRONG.values(), errors, strict=True)
    return [f"{words} must be in: {line}" for words, line in pairs if words not in line]


def main() -> None:
    """Print the problems; exit with 1 if there are any."""
    found = problems()
    if not (ROOT / "quire" / "py.typed").is_file():
        found.append("quire/py.typed must be there, or type checkers see nothing of the package.")
    print("\n".join(found) or "Success: programs that use the package are typed")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
