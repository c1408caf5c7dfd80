"""Both HTTP servers with their speculation on: ``quire serve`` and ``llama-server``.

    scripts/bench drafts                          # everything: about 12 minutes
    scripts/bench drafts --work "draft model"     # some
    scripts/bench drafts --show                   # print what was measured last

Both read the same files: quire-tiny with quire-tiny-draft as its draft model, quire-tiny and
SmolLM2 with tokens looked up in the text. 1, 4 and 16 clients send chats whose answers are greedy
and end where the model ends them. Quire runs as it comes; llama-server's settings are tried first
(threads, then the rest, each twice), and its fastest go into the rounds. In a round each server
answers the same prompts with speculation and without, in alternating order. Nothing that a server
learned of a prompt serves it again: requests to Quire have a ``cache_salt``, llama-server with
speculation is started afresh for every part. Quire learns at each load whether proposals pay: in
parts of its own before the rounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.peers.burst import PEER, QUIRE, free_port, running, tree
from benchmarks.peers.quiet import Watch
from benchmarks.peers.setup import Peers, add_options, build_server, convert_model, locate
from quire.bench.sample_texts import built_in
from quire.store.hub import resolve_model

RESULT = "speculation_peers"
CLIENTS = (1, 4, 16)
TRIALS = 2
#: Parts that Quire answers before the rounds, of about a second each.
LEARNING = 12
#: Tokens that a slot must hold: prompt and answer.
SLOT_TOKENS = 1024
PLAIN = " without"
NGRAM_SIZES = ("3", "5")
Flags = tuple[str, ...]


def _drafts() -> list[Flags]:
    sure = ("--spec-draft-p-min", "0.75", "--spec-draft-n-max", "16")
    fixed = [("--spec-draft-n-max", number) for number in ("3", "5", "8", "12")]
    return [("--spec-type", "draft-simple", *more) for more in [*fixed, sure]]


def _lookups() -> list[Flags]:
    found: list[Flags] = [("--spec-type", "ngram-cache"), ("--spec-type", "ngram-mod")]
    for kind in ("ngram-simple", "ngram-map-k"):
        found.append(("--spec-type", kind))
        for size in NGRAM_SIZES:
            sizes = (f"--spec-{kind}-size-n", size, f"--spec-{kind}-size-m", "8")
            found.append(("--spec-type", kind, *sizes))
    own = "--spec-ngram-mod"
    near = (f"{own}-n-match", "4", f"{own}-n-min", "1", f"{own}-n-max", "8")
    return [*found, ("--spec-type", "ngram-mod", *near)]


@dataclass(frozen=True)
class Work:
    """What both are asked, and with which speculation.

    Attributes:
        dataset: Of ``quire.bench.sample_texts``.
        max_tokens: Of an answer.
        requests: Of one client alone in a part; four send half as many each.
        flags: Settings of llama-server to choose from.
        threads: Numbers of threads of llama-server to choose from.
    """

    name: str
    model: str
    draft: str | None
    dataset: str
    max_tokens: int
    requests: int
    flags: list[Flags]
    threads: tuple[int, ...]

    @property
    def group(self) -> str:
        return f"{self.model}, {self.name}"


#: SmolLM2 takes its time: the settings that were fastest with quire-tiny, of each kind.
FEW = [_lookups()[number] for number in (0, 3, -1)]
WORKS = (
    Work("draft model", "quire-tiny", "quire-tiny-draft", "mixed", 160, 12, _drafts(), (1, 2)),
    Work("n-gram", "quire-tiny", None, "copy", 160, 12, _lookups(), (1, 2)),
    Work("n-gram", "smollm2", None, "copy", 64, 2, FEW, (2,)),
)


@dataclass
class Part:
    """What one server answered: texts in the order of the prompts, and tokens of both sides."""

    texts: list[str]
    prompt_tokens: list[int]
    output_tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.seconds


Ask = Callable[[int], dict[str, Any]]


def send(port: int, body: Ask, num_clients: int, num_requests: int) -> Part:
    """Have clients send chats, each the next one as soon as it has an answer.

    Raises:
        SystemExit: The server answered with an error.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(num_requests):
        waiting.put(index)
    found: dict[int, dict[str, Any]] = {}

    def client(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                break
            data = json.dumps(body(index))
            path, head = "/v1/chat/completions", {"Content-Type": "application/json"}
            connection.request("POST", path, data, head)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise SystemExit(f"[drafts] {answer.status} {content[:500]!r}")
            found[index] = json.loads(content)
        connection.close()

    with ThreadPoolExecutor(num_clients) as pool:
        start = time.perf_counter()
        list(pool.map(client, range(num_clients)))
        seconds = time.perf_counter() - start
    answers = [found[index] for index in range(num_requests)]
    return Part(
        [answer["choices"][0]["message"]["content"] for answer in answers],
        [answer["usage"]["prompt_tokens"] for answer in answers],
        sum(answer["usage"]["completion_tokens"] for answer in answers),
        seconds,
    )


@dataclass
class Bench:
    """One work's files, prompts and servers."""

    work: Work
    peers: Peers
    threads: int
    model: Path
    draft: Path | None
    parts: int = 0
    conversations: list[Any] = field(default_factory=list)

    def prompt(self, index: int) -> dict[str, Any]:
        messages = self.conversations[index % len(self.conversations)]
        return {"messages": messages, "temperature": 0, "max_tokens": self.work.max_tokens}

    def quire_command(self, port: int) -> list[str]:
        own: dict[str, Any] = {"method": "ngram"}
        if self.draft is not None:
            own = {"method": "draft_model", "model": str(self.draft)}
        return [
            sys.executable, "-m", "quire.cli.main", "serve", str(self.model), "--port", str(port),
            "--threads", str(self.threads), "--disable-uvicorn-access-log", "--memory", "2GiB",
            "--max-model-len", str(SLOT_TOKENS), "--speculative-config", json.dumps(own),
        ]  # fmt: skip

    def peer_command(self, port: int, num_clients: int, threads: int, flags: Flags) -> list[str]:
        draft = ["-md", str(self.draft)] if self.draft is not None and flags else []
        slots, own = str(num_clients), str(threads)
        return [
            str(self.peers.server), "-m", str(self.model), "--port", str(port), "-np", slots,
            "-c", str(num_clients * SLOT_TOKENS), "-t", own, "-tb", own, "--no-webui",
            *draft, *flags,
        ]  # fmt: skip

    def ask_quire(self, port: int, num_clients: int, *, speculative: bool) -> Part:
        self.parts += 1
        own = {"cache_salt": f"part {self.parts}", "speculative": speculative}
        return self._send(port, num_clients, own)

    def ask_peer(self, port: int, num_clients: int) -> Part:
        return self._send(port, num_clients, {"cache_prompt": False})

    def ask_fresh_peer(self, num_clients: int, threads: int, flags: Flags) -> Part:
        port = free_port()
        with running(self.peer_command(port, num_clients, threads, flags), port):
            return self.ask_peer(port, num_clients)

    def _send(self, port: int, num_clients: int, own: dict[str, Any]) -> Part:
        # Warm-up prompts are from the end of the list, which no later request takes.
        last = len(self.conversations) - 1
        send(port, lambda i: {**self.prompt(last - i), **own}, num_clients, min(num_clients, 4))
        count = num_clients * max(1, round(self.work.requests / num_clients**0.5))
        return send(port, lambda i: {**self.prompt(i), **own}, num_clients, count)

    def choose(self, num_clients: int, flags: list[Flags]) -> tuple[int, Flags]:
        """Return the number of threads and the settings with which llama-server is fastest."""

        def rate(threads: int, own: Flags) -> float:
            return max(self.ask_fresh_peer(num_clients, threads, own).rate for _ in range(TRIALS))

        by_threads = {threads: rate(threads, flags[0]) for threads in self.work.threads}
        threads = max(by_threads, key=by_threads.__getitem__)
        by_flags = {own: rate(threads, own) for own in flags[1:]}
        by_flags[flags[0]] = by_threads[threads]
        return threads, max(by_flags, key=by_flags.__getitem__)

    def measure(self, quire: int, num_clients: int, rounds: int) -> dict[str, Any]:
        """Return what one number of clients came to; ``quire`` is its server's port."""
        threads, flags = self.choose(num_clients, self.work.flags)
        plain_threads, _ = self.choose(num_clients, [()])
        found: dict[str, list[Part]] = {}
        with self.peer(num_clients, plain_threads) as plain:
            ways: dict[str, Callable[[], Part]] = {
                QUIRE: lambda: self.ask_quire(quire, num_clients, speculative=True),
                PEER: lambda: self.ask_fresh_peer(num_clients, threads, flags),
                QUIRE + PLAIN: lambda: self.ask_quire(quire, num_clients, speculative=False),
                PEER + PLAIN: lambda: self.ask_peer(plain, num_clients),
            }
            for _ in range(LEARNING):
                self.ask_quire(quire, num_clients, speculative=True)
            for number in range(rounds):
                for name in list(ways)[:: 1 if number % 2 else -1]:
                    found.setdefault(name, []).append(ways[name]())
        return describe(found) | {
            "settings": " ".join(("-t", str(threads), *flags)),
            "settings without": f"-t {plain_threads}",
        }

    @contextmanager
    def peer(self, num_clients: int, threads: int) -> Iterator[int]:
        """Run llama-server without speculation; yield its port."""
        port = free_port()
        with running(self.peer_command(port, num_clients, threads, ()), port):
            yield port

    def run(self, numbers: Sequence[int], rounds: int) -> dict[str, Any]:
        """Return the entries of the result file, by number of clients."""
        port = free_port()
        entries = {}
        with running(self.quire_command(port), port) as (process, _):
            for num_clients in numbers:
                watch = Watch([item.pid for item in tree(process)])
                watch.begin()
                entry = self.measure(port, num_clients, rounds)
                entry["was_quiet"] = watch.end().canary <= 1.25
                entries[name_clients(num_clients)] = entry
                print(f"{self.work.group}, {num_clients}: {ratio_text(entry)}", file=sys.stderr)
        return entries


def name_clients(number: int) -> str:
    """Return the line of a number of clients."""
    return "1 client" if number == 1 else f"{number} clients"


def describe(found: dict[str, list[Part]]) -> dict[str, Any]:
    """Return the rates, their ratios of the same rounds, and how many answers are the same.

    Raises:
        SystemExit: The servers did not read the same prompts, or speculation changed an answer of
            Quire.
    """
    if len({tuple(part.prompt_tokens) for parts in found.values() for part in parts}) != 1:
        raise SystemExit("[drafts] both must read the same tokens; their prompts' lengths differ")
    texts = {name: parts[0].texts for name, parts in found.items()}
    if texts[QUIRE] != texts[QUIRE + PLAIN]:
        raise SystemExit("[drafts] speculation changed an answer of Quire")
    rates = {name: [part.rate for part in parts] for name, parts in found.items()}
    best = [max(pair) for pair in zip(rates[PEER], rates[PEER + PLAIN], strict=True)]
    return {
        "unit": "tokens/s",
        **{name: results.summary(values) for name, values in rates.items()},
        "ratio": ratios(rates[QUIRE], rates[PEER]),
        "ratio to its better way": ratios(rates[QUIRE], best),
        "speedup": ratios(rates[QUIRE], rates[QUIRE + PLAIN]),
        "speedup of llama-server": ratios(rates[PEER], rates[PEER + PLAIN]),
        "answers": len(texts[QUIRE]),
        "same_answers": same(texts[QUIRE], texts[PEER + PLAIN]),
        "same_answers_of_peer": same(texts[PEER], texts[PEER + PLAIN]),
    }


def ratios(first: list[float], second: list[float]) -> dict[str, float]:
    """Return the summary of each round's ratio."""
    return results.summary([a / b for a, b in zip(first, second, strict=True)])


def same(first: list[str], second: list[str]) -> int:
    """Return how many texts are equal."""
    return sum(a == b for a, b in zip(first, second, strict=True))


def ratio_text(entry: dict[str, Any]) -> str:
    """Return the ratio with its range."""
    ratio = entry["ratio"]
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def print_table(found: dict[str, dict[str, Any]]) -> None:
    """Print a line for each work and number of clients."""
    table = Table(
        "output tokens/s", "Quire", "llama-server", "ratio", "to its better way", "speedups",
        "same", "settings of llama-server",
    )  # fmt: skip
    for group, entries in found.items():
        for line, entry in entries.items():
            speedups = (entry["speedup"], entry["speedup of llama-server"])
            table.add_row(
                f"{group}, {line}",
                f"{entry[QUIRE]['median']:.0f}",
                f"{entry[PEER]['median']:.0f}",
                ratio_text(entry),
                f"{entry['ratio to its better way']['median']:.2f}",
                ", ".join(f"{speedup['median']:.2f}" for speedup in speedups),
                f"{entry['same_answers']} of {entry['answers']}",
                entry["settings"],
            )
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--work", action="append", choices=[work.name for work in WORKS])
    parser.add_argument("--model", action="append", choices=[work.model for work in WORKS])
    parser.add_argument("--clients", type=int, action="append", help="default: 1, 4 and 16")
    parser.add_argument("--type", default="q8_0", help="of quire-tiny's weights, as quire convert")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="of Quire")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the file")
    arguments = parser.parse_args()
    name = results.per_processor(RESULT)
    if not arguments.show:
        peers = locate(arguments)
        build_server(peers)
        run = {"threads": arguments.threads, "rounds": arguments.rounds, "type": arguments.type}
        for work in WORKS:
            if work.name not in (arguments.work or [work.name]):
                continue
            if work.model not in (arguments.model or [work.model]):
                continue
            draft = None if work.draft is None else convert_model(peers, work.draft, arguments.type)
            model = resolve_model(work.model)
            if model.suffix != ".gguf":
                model = convert_model(peers, work.model, arguments.type)
            bench = Bench(work, peers, arguments.threads, model, draft)
            bench.conversations = built_in(work.dataset)
            entries = bench.run(arguments.clients or CLIENTS, arguments.rounds)
            results.merge(name, {work.group: entries}, run=run)
    print_table(json.loads((results.RESULTS / f"{name}.json").read_text())["results"])


if __name__ == "__main__":
    main()
