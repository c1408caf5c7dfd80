"""Every kernel on the shapes of Llama-3.2-1B, timed with what its time is made of."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median, mode
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.kernels import roofline
from benchmarks.kernels.bench_attention import SHAPES as ATTENTION_SHAPES
from benchmarks.kernels.bench_attention import work_of
from benchmarks.kernels.bench_linear import FLOATS, SHAPES, cases_of, random_layer, random_weights
from benchmarks.kernels.bench_moe import Layer as ExpertLayer
from benchmarks.kernels.bench_sampling import SETTINGS, peaked
from benchmarks.limits.accounts import Costs, account, jobs_of
from quire.kernels.cpu.attention import CpuKVCache
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from tests.kernels.sampling_cases import batch as sampling_batch

#: Bytes that stay in a core's own cache while a call goes over them again.
CACHED_BYTES = 768 << 10
#: As many sets of arrays that each call finds its own in memory.
COLD_BYTES = 128 << 20
#: Between two reads of memory; calls that take less are timed several in a row.
BURST_SECONDS = 2e-3
#: At least as many bursts a line, a tenth of a second: what disturbs a few of them does not count.
BURSTS = 24
WIDTH, MLP, VOCAB = 2048, 8192, 128256
#: name: (queries a request, context, requests)
ATTENTION = {
    "decode 1 at 512": (1, 512, 1),
    "decode 1 at 2048": (1, 2048, 1),
    "decode 1 at 8192": (1, 8192, 1),
    "decode 1 at 32768": (1, 32768, 1),
    "decode 32 at 512": (1, 512, 32),
    "prefill 512": (512, 512, 1),
    "prefill 2048": (2048, 2048, 1),
    "prefill 512 after 7680": (512, 8192, 1),
}


@dataclass
class Kernel:
    """One kernel at one shape.

    Attributes:
        calls: Do the same work on different data, used in turn.
        smallest: The same call on a shape of no work.
        nbytes, operations: The least of one call, read and written bytes alike.
        dtype: Of the weights, which decides the peak.
        cached: The same loop on data in a cache, and how many times its work the call's is.
    """

    group: str
    name: str
    rows: int
    calls: Sequence[Callable[[], object]]
    smallest: Callable[[], object]
    nbytes: int
    operations: int
    dtype: str = "float32"
    cached: tuple[Callable[[], object], float] | None = None


def _seconds(calls: Iterable[Callable[[], object]], enough: float = math.inf) -> list[float]:
    """Return the seconds of each call, up to the one with which all have taken ``enough``."""
    taken: list[float] = []
    for call in calls:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
        if sum(taken) >= enough:
            break
    return taken


def _repeats(kernel: Kernel, costs: Costs, rounds: int) -> list[tuple[Costs, float]]:
    """Return the seconds of each call in turn, with what the machine reached around it."""
    kernel.calls[0]()
    calls = kernel.calls[:24]
    turns = itertools.cycle(calls)
    found: list[tuple[Costs, float]] = []
    bursts = 0
    while len(found) < rounds * len(calls) or bursts < BURSTS:
        here, taken = costs.around(partial(_seconds, turns, BURST_SECONDS))
        found += [(here, seconds) for seconds in taken]
        bursts += 1
    return found


def _warm(call: Callable[[], object], times: int) -> float:
    """Return the median seconds of the same call again and again, after one that is not timed."""
    call()
    return median(_seconds([call] * times))


def measure(kernel: Kernel, costs: Costs, rounds: int) -> dict[str, Any]:
    """Return a kernel's time, the fraction of its limit, and what is left."""
    repeats = _repeats(kernel, costs, rounds)
    seconds = results.summary([seconds for _, seconds in repeats])
    taken = seconds["median"]
    bandwidth = median(here.bandwidth for here, _ in repeats)

    def limit_at(here: Costs) -> tuple[float, str]:
        peak = roofline.peak_of(kernel.dtype, here.speed)
        return here.limit(kernel.nbytes, kernel.operations, peak)

    share = median(limit_at(here)[0] / seconds for here, seconds in repeats)
    bound = mode(limit_at(here)[1] for here, _ in repeats)
    jobs = jobs_of(kernel.calls[0])
    floor = _warm(kernel.smallest, 24)
    in_cache = None
    if kernel.cached and bound == "memory":
        call, times = kernel.cached
        own = _warm(call, 8 * rounds) - floor - jobs_of(call) * costs.barrier
        in_cache = floor + jobs * costs.barrier + max(own, 0.0) * times
    return {
        "group": kernel.group,
        "name": kernel.name,
        "rows": kernel.rows,
        "seconds": seconds,
        "gb_per_second": round(kernel.nbytes / taken / 1e9, 2),
        "machine_gb_per_second": round(bandwidth / 1e9, 2),
        "gop_per_second": round(kernel.operations / taken / 1e9, 1),
        **account(costs, taken, share * taken, bound, call=floor, jobs=jobs, in_cache=in_cache),
    }


def linears(dtypes: Sequence[str], all_rows: Sequence[int], quick: bool) -> Iterator[Kernel]:
    """Yield linears of every format and number of rows; the head for few rows only."""
    shapes = ("qkv",) if quick else ("qkv", "gate_up", "down", "head")
    for dtype, shape in itertools.product(dtypes, shapes):
        inputs, outputs, _ = SHAPES[shape]
        rows_here = [rows for rows in all_rows if shape != "head" or rows <= 32]
        cases = cases_of(shape, dtype, wanted=rows_here)
        tiny = random_layer(256, 32, dtype)
        bytes_per_output = cases[0].layers[0].nbytes / outputs
        few = max(64, int(CACHED_BYTES / bytes_per_output) // 64 * 64)
        small = random_layer(inputs, few, dtype)
        for case in cases:
            layers = [partial(_multiply(layer, case.rows)) for layer in case.layers]
            yield Kernel(
                "head" if shape == "head" else "linear",
                f"{dtype} {inputs}->{outputs}",
                case.rows,
                layers,
                _multiply(tiny, 1),
                case.layers[0].nbytes + 4 * case.rows * (inputs + outputs),
                2 * case.rows * inputs * outputs,
                dtype,
                (_multiply(small, case.rows), outputs / few),
            )


def _multiply(layer: CpuLinear, rows: int) -> Callable[[], object]:
    x = np.random.default_rng(0).standard_normal((rows, layer.in_features), dtype=np.float32)
    return partial(layer, x, np.empty((rows, layer.out_features), np.float32))


def attentions(names: Sequence[str]) -> Iterator[Kernel]:
    """Yield attention with rotation and the writing of K and V."""
    for dtype, name in itertools.product(("float32", "float16", "bfloat16"), names):
        case = replace(ATTENTION_SHAPES["1b"], dtype=dtype)
        tiny = work_of("", case, 1, 1, 1)
        queries, context, requests = ATTENTION[name]
        work = work_of(name, case, queries, context, requests)
        few = work_of("", case, queries, 256, 1) if queries == 1 else None
        moved = work.read_bytes + 4 * requests * queries * (case.width + WIDTH)
        times = context * requests / 256
        yield Kernel(
            f"attention, {name.split()[0]}", f"{dtype} {name}", requests * queries,
            [work.call] * 8, tiny.call, moved, work.flops, dtype,
            (few.call, times) if few else None,
        )  # fmt: skip


def rotations(all_rows: Sequence[int]) -> Iterator[Kernel]:
    """Yield the rotation of queries and keys with the writing of K and V: first tokens, alone."""
    case = ATTENTION_SHAPES["1b"]
    tiny = work_of("", case, 1, 1, 1)
    for rows in all_rows:
        work = work_of("", case, 1, 1, rows)
        moved = work.read_bytes + 4 * rows * (2 * case.width + WIDTH)
        yield Kernel("rope", "rope, KV written", rows, [work.call] * 8, tiny.call, moved, 0)


def experts(backend: CpuBackend, dtype: str, all_rows: Sequence[int]) -> Iterator[Kernel]:
    """Yield a layer of a mixture of experts, all of them in one call."""
    layer, name = ExpertLayer(backend, "32 of 768, top 8", dtype), "32 of 768, top 8"
    tiny = random_layer(256, 32, dtype)
    for rows in all_rows:
        x, ids, weights = layer.routes(rows)
        # Other experts every time: a few of them stay in a last cache.
        shifted = [(ids + i * layer.top_k) % layer.num_experts for i in range(4)]
        calls = [partial(layer.at_once, x, i.astype(np.int32), weights) for i in shifted]
        yield Kernel(
            "experts", f"{dtype} {name}", rows, calls * 2,
            _multiply(tiny, 1), layer.used_bytes(ids) + 2 * x.nbytes,
            6 * rows * layer.top_k * layer.width * layer.middle, dtype,
        )  # fmt: skip


def elementwise(backend: CpuBackend, rows: int) -> Iterator[Kernel]:
    """Yield norms, the activation and row picking on rows that lie in memory."""

    def cold(make: Callable[[int], Callable[[], object]], nbytes: int) -> list[Any]:
        return [make(i) for i in range(min(24, max(1, COLD_BYTES // nbytes)))]

    def norm(width: int, count: int) -> Callable[[], object]:
        x, residual = np.ones((2, count, width), np.float32)
        weight = np.ones(width, np.float32)
        return partial(backend.rms_norm, x, weight, 1e-5, np.empty_like(x), residual)

    def gate(width: int, count: int) -> Callable[[], object]:
        x, out = np.ones((count, 2 * width), np.float32), np.empty((count, width), np.float32)
        return partial(backend.gated_activation, x, "silu", out)

    def gather(width: int, count: int) -> Callable[[], object]:
        x, out = np.ones((2, count, width), np.float32)
        return partial(backend.gather_rows, x, np.arange(count, dtype=np.int32), out)

    # Arrays moved a row: x, residual twice and out; two halves and out; in and out.
    for name, make, width, moved in (
        ("rms_norm + residual", norm, WIDTH, 4),
        ("gated silu", gate, MLP, 3),
        ("gather_rows", gather, WIDTH, 2),
    ):
        nbytes = 4 * rows * width * moved
        calls = cold(lambda _, make=make, width=width: make(width, rows), nbytes)
        yield Kernel("elementwise", name, rows, calls, make(16, 1), nbytes, 0)


def samplings(backend: CpuBackend, rows: int) -> Iterator[Kernel]:
    """Yield choices of tokens over a whole vocabulary; each reads its logits once at least."""
    for name in ("greedy", "temperature", "top_k 50, top_p 0.9"):
        values = sampling_batch(rows, **SETTINGS[name])
        tiny = sampling_batch(1, **SETTINGS[name])
        logits = [peaked(rows, VOCAB) for _ in range(2)]
        calls = [partial(backend.sample, one.copy(), values) for one in logits for _ in range(8)]
        smallest = partial(backend.sample, peaked(1, 64)[:, :32].copy(), tiny)
        yield Kernel("sampling", name, rows, calls, smallest, 4 * rows * VOCAB, 0)


def copies(dtypes: Sequence[str]) -> Iterator[Kernel]:
    """Yield what a load and a shared prefix do: packing matrices, copying blocks of the cache."""
    inputs, outputs, _ = SHAPES["gate_up"]
    for dtype in dtypes:
        weights = random_weights(inputs, outputs, dtype)
        held = dtype if dtype in FLOATS else "float32"
        stored = sum(_stored_bytes(weight) for weight in weights)
        packed = CpuLinear(weights, [], held).nbytes
        tiny = random_weights(256, 32, dtype)
        yield Kernel(
            "packing", f"{dtype} {inputs}->{outputs}", 1, [partial(CpuLinear, weights, [], held)],
            partial(CpuLinear, tiny, [], held), stored + packed, 0, dtype,
        )  # fmt: skip
    cache = CpuKVCache(ATTENTION_SHAPES["1b"].cache_spec, 4096)
    cache.native.memory[:] = 1  # untouched pages would all be one page of zeros
    pairs = [(i, i + 2048) for i in range(1, 2048)]
    nbytes = 2 * len(pairs) * cache.nbytes // 4096
    yield Kernel(
        "copy", "KV blocks, 2047", 1, [partial(cache.copy_blocks, pairs)],
        partial(cache.copy_blocks, pairs[:1]), nbytes, 0,
    )  # fmt: skip


def _stored_bytes(weight: Any) -> int:
    arrays = [getattr(weight, name, None) for name in ("array", "rows", "codes", "scales")]
    return sum(int(array.nbytes) for array in arrays if array is not None)


def all_kernels(backend: CpuBackend, dtypes: Sequence[str], quick: bool) -> Iterator[Kernel]:
    """Yield every kernel of the table; ``quick`` ones take seconds, all of them minutes."""
    all_rows = (1, 8, 32, 512)
    yield from linears(dtypes, all_rows, quick)
    names = list(ATTENTION)
    yield from attentions([n for n in names if "32768" not in n] if quick else names)
    yield from rotations((1, 32) if quick else all_rows)
    if not quick:
        for dtype in ("bfloat16", "Q4_K"):
            yield from experts(backend, dtype, all_rows)
    for rows in (1, 32) if quick else all_rows:
        yield from elementwise(backend, rows)
    for rows in (1, 8) if quick else (1, 8, 32):
        yield from samplings(backend, rows)
    yield from copies(dtypes)


def run(costs: Costs, dtypes: Sequence[str], rounds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of every kernel."""
    backend = CpuBackend(native.num_threads())
    for kernel in all_kernels(backend, dtypes, quick):
        yield measure(kernel, costs, rounds)
