"""Drives a loaded engine step by step with token ids, for benchmarks that time single steps."""

from __future__ import annotations

import time
from itertools import count

from quire import LLM, SamplingParams

_names = map(str, count())


def prompt(num_tokens: int, sequence: int) -> list[int]:
    """Return a prompt of its own for each sequence, so that no prefix is shared."""
    return [(7 * position + 13 * sequence) % 200 for position in range(num_tokens)]


def prefill_seconds(llm: LLM, num_tokens: int) -> float:
    """Return the seconds from a queued prompt to its first token."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.engine.add_request(f"prefill-{next(_names)}", prompt(num_tokens, 0), params)
    start = time.perf_counter()
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    return time.perf_counter() - start


def start_decoding(llm: LLM, batch: int, depth: int, steps: int) -> None:
    """Bring ``batch`` sequences of ``depth`` tokens to the point where each step decodes all."""
    # Those that start first go on until the last has started: prompts take turns.
    tokens = steps + 2 + (batch - 1) * depth // 64
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for sequence in range(batch):
        name = f"decode-{next(_names)}"
        llm.engine.add_request(name, prompt(depth, sequence), params)
    decoding = 0
    while decoding < batch:
        assert llm.engine.has_unfinished_requests(), f"no step decoded all {batch} sequences"
        decoding = sum(bool(output.outputs[0].token_ids) for output in llm.engine.step())


def decode_seconds(llm: LLM, batch: int, steps: int) -> list[float]:
    """Return the seconds of each of ``steps`` engine steps after :func:`start_decoding`."""
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        outputs = llm.engine.step()
        seconds.append(time.perf_counter() - start)
        assert len(outputs) == batch, f"{len(outputs)} sequences moved, wanted {batch}"
    stop_decoding(llm)
    return seconds


def stop_decoding(llm: LLM) -> None:
    """End all that runs."""
    for name in list(llm.engine.engine.scheduler.requests):
        llm.engine.abort_request(name)
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
