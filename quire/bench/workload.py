"""Prompts and output lengths of requests, drawn or read from a trace; not their times."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.bench.bench_options import BenchOptions
from quire.core.errors import ConfigError

if TYPE_CHECKING:
    from quire.text.tokenizers.tokenizer import Tokenizer

#: Ids below this are special in many vocabularies.
FIRST_TOKEN = 5
WORDS = "the of and to in is that it was for on are as with they at be this have from".split()


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request to send.

    Attributes:
        prompt: Text, or token ids.
        num_prompt_tokens: Length that the prompt was made for; the server's count is reported.
        max_tokens: Output tokens asked for.
        start: Seconds from the start of the run where the trace says so, else None.
        fields: Further fields of the request, or others than it would have.
    """

    prompt: str | list[int]
    num_prompt_tokens: int
    max_tokens: int
    start: float | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one request, and its time in a trace."""

    num_prompt_tokens: int
    max_tokens: int
    start: float | None = None


def make_jobs(options: BenchOptions, tokenizer: Tokenizer | None) -> list[BenchRequest]:
    """Make the requests of a run; the same options give the same requests.

    Args:
        tokenizer: The tokenizer by which prompts are texts of exact lengths. None: prompts are
            token ids for the completions API, texts of about as many words for the chat API.

    Raises:
        ConfigError: The trace cannot be read.
    """
    lengths_random = random.Random(options.seed)
    prompt = _prompt_maker(options, tokenizer)
    prefix_random = random.Random(f"prefix {options.seed}")
    prefix = prompt(options.prefix_len, prefix_random) if options.prefix_len else None
    jobs = []
    for index, lengths in enumerate(_lengths(options, lengths_random)):
        own = prompt(lengths.num_prompt_tokens, random.Random(f"{options.seed} {index}"))
        joined = own if prefix is None else prefix + own  # type: ignore[operator]
        total = options.prefix_len + lengths.num_prompt_tokens
        jobs.append(BenchRequest(joined, total, lengths.max_tokens, lengths.start))
    return jobs


def _lengths(options: BenchOptions, random: random.Random) -> list[Lengths]:
    if "trace" in options.dataset_name:
        found = read_trace(Path(str(options.dataset_path)), options.num_prompts)
        if options.dataset_name == "trace":
            found = [Lengths(item.num_prompt_tokens, item.max_tokens) for item in found]
    else:
        draw = _uniform if options.dataset_name == "random" else _lognormal
        means = (options.input_len, options.output_len)
        found = [
            Lengths(*(draw(mean, options, random) for mean in means))
            for _ in range(options.num_prompts)
        ]
    most_in, most_out = options.max_input_len or math.inf, options.max_output_len or math.inf
    return [
        Lengths(int(min(x.num_prompt_tokens, most_in)), int(min(x.max_tokens, most_out)), x.start)
        for x in found
    ]


def _uniform(mean: int, options: BenchOptions, random: random.Random) -> int:
    ratio = options.range_ratio
    return random.randint(max(1, round(mean * (1 - ratio))), max(1, round(mean * (1 + ratio))))


def _lognormal(mean: int, options: BenchOptions, random: random.Random) -> int:
    """Draw from the lognormal distribution with this mean, not this median."""
    sigma = options.spread
    return max(1, round(random.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)))


def read_trace(path: Path, limit: int) -> list[Lengths]:
    """Read the first ``limit`` requests of a trace with a header line and at least three columns.

    The columns are time (ISO 8601, or seconds), prompt tokens and output tokens, as in the Azure
    LLM inference traces; times count from the first request.

    Raises:
        ConfigError: The file cannot be read, has too few rows, or a row is none of that.
    """
    rows: list[tuple[float, int, int]] = []
    try:
        with path.open(newline="") as file:
            for line, row in enumerate(islice(csv.reader(file), 1, limit + 1), 2):
                try:
                    rows.append((_seconds(row[0]), max(1, int(row[1])), max(1, int(row[2]))))
                except (ValueError, IndexError) as error:
                    raise ConfigError(
                        f"[bench] {path} line {line} must be time, prompt tokens and output "
                        f"tokens; got {','.join(row)!r}."
                    ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[bench] --dataset-path must be readable; got {error}.") from error
    if len(rows) < limit:
        raise ConfigError(
            f"[bench] --num-prompts must be at most the {len(rows)} rows of {path}; got {limit}."
        )
    first = rows[0][0]
    return [Lengths(prompt, output, max(0.0, time - first)) for time, prompt, output in rows]


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # The trace has seven digits of a second; Python reads six.
        whole, point, digits = text.strip().partition(".")
        return datetime.fromisoformat(whole + point + digits[:6]).timestamp()


def _prompt_maker(
    options: BenchOptions, tokenizer: Tokenizer | None
) -> Callable[[int, random.Random], str | list[int]]:
    if tokenizer is not None:
        return lambda count, random: exact_text(tokenizer, count, random)
    if options.backend == "openai-chat":
        return lambda count, random: " ".join(random.choices(WORDS, k=count)) + " "
    ids = range(FIRST_TOKEN, options.vocab_size)
    return lambda count, random: random.choices(ids, k=count)


def exact_text(tokenizer: Tokenizer, count: int, random: random.Random) -> str:
    """Return a text that ``tokenizer`` reads as ``count`` tokens, its special tokens left out.

    Words are joined and cut; what merges over the cut is mended by trying again.

    Raises:
        ConfigError: No such text was found.
    """
    ids: Sequence[int] = []
    text = ""
    for _ in range(20):
        while len(ids) < count:
            text += " " + " ".join(random.choices(WORDS, k=max(4, count - len(ids))))
            ids = tokenizer.encode(text, add_special_tokens=False)
        text = tokenizer.decode(ids[:count])
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == count:
            return text
    raise ConfigError(f"[bench] --tokenizer gives no text of exactly {count} tokens.")
