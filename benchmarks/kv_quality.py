"""What a narrow KV cache costs: perplexity of a held-out text by ``--kv-cache-dtype``.

    python -m benchmarks.kv_quality [--model smollm2 --tokens 2048]   # after quire pull smollm2

The text is cut into windows; each is a prompt whose log-probabilities are asked for. Keys and
values are read back from the cache even within one step, so a prompt meets all of the rounding.
"""

from __future__ import annotations

import argparse
import math

from rich.console import Console
from rich.table import Table

from benchmarks import results
from quire import LLM, SamplingParams
from quire.core.model.kv_cache_spec import KV_DTYPE_BITS
from quire.store.hub import resolve_model

WINDOW = 512


def perplexity(llm: LLM, ids: list[int], window: int = WINDOW) -> float:
    """Return exp of the mean negative log-likelihood over windows, first tokens given."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    parts = [ids[start : start + window] for start in range(0, len(ids) - 1, window)]
    total, count = 0.0, 0
    for part, output in zip(parts, llm.generate(parts, params), strict=True):
        assert output.prompt_logprobs is not None
        for token_id, entry in zip(part[1:], output.prompt_logprobs[1:], strict=True):
            assert entry is not None
            total -= entry[token_id].logprob
            count += 1
    return math.exp(total / count)


def held_out_ids(llm: LLM) -> list[int]:
    """Return the tokens of quire-tiny's held-out text."""
    text = (resolve_model("quire-tiny") / "eval" / "heldout.txt").read_text()
    return llm.get_tokenizer().encode(text)


def main() -> None:
    """Print the table and write ``results/kv_quality.json``, of another model a file of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dtype", nargs="+", choices=list(KV_DTYPE_BITS), default=list(KV_DTYPE_BITS)
    )
    parser.add_argument("--model", default="quire-tiny", help="its weights in float32")
    parser.add_argument("--tokens", type=int, help="of the text, the first ones; all if not given")
    options = parser.parse_args()
    table = Table("KV cache", "bytes per token", "perplexity", "against float32")
    rows: list[dict[str, object]] = []
    exact = None
    for dtype in options.dtype:
        # Weights that are rounded are multiplied by activations that are not.
        llm = LLM(
            options.model,
            dtype="float32",
            activations="fp32",
            kv_cache_dtype=dtype,
            kv_cache_memory_bytes=512 << 20,
            max_model_len=WINDOW + 1,
        )
        spec = llm.engine.engine.executor.kv_cache_spec
        found = perplexity(llm, held_out_ids(llm)[: options.tokens])
        llm.shutdown()
        exact = exact or found
        rows.append({"dtype": dtype, "bytes_per_token": spec.token_bytes, "perplexity": found})
        table.add_row(dtype, f"{spec.token_bytes:,}", f"{found:.5f}", f"{found / exact - 1:+.4%}")
    Console().print(table)
    name = "kv_quality" if options.model == "quire-tiny" else f"kv_quality_{options.model}"
    print(results.write(name, rows, model=options.model, window=WINDOW, tokens=options.tokens))


if __name__ == "__main__":
    main()
