"""Settings of ``quire bench spec``, with defaults; flags are generated from the fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from quire.bench.load_client import parse_fields
from quire.bench.server_options import TargetOptions, check
from quire.core.errors import ConfigError
from quire.settings.option import option

#: The percentile that is reported, and the number of samples that it needs at least.
PERCENT, NEEDED_SAMPLES = 99.0, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecOptions(TargetOptions):
    """Settings of the load that is sent with speculation and without."""

    backend: Literal["openai", "openai-chat", "vllm"] = option(
        "openai-chat", "API: chat completions, or text completions (openai, vllm)"
    )
    concurrency: str = option("1,4,16", "numbers of clients to measure, by commas")
    rounds: int = option(5, "with and without speculation in turn, for each number of clients")
    num_prompts: int | None = option(
        None, "requests of a part; default: enough for P99 over all rounds"
    )
    output_len: int = option(128, "most tokens of an answer")
    dataset: Literal["mixed", "chat", "copy", "prose"] = option("mixed", "built-in prompts to send")
    prompts: str | None = option(
        None, "JSONL file with prompt or messages a line, in place of --dataset"
    )
    speculative: str | None = option(
        None, "JSON of the field speculative in requests with speculation; default: not sent"
    )
    without: str = option(
        '{"speculative": false}', "JSON object: fields of requests without speculation"
    )
    seed: int = option(0, "seed of the first request; each request has its own")
    ignore_eos: bool = option(False, "ask for exactly the output length")
    plot: str | None = option(None, "write a picture (.png, .svg, .pdf); needs matplotlib")

    def __post_init__(self) -> None:
        # Without arguments super() would look for the class as it was before it had slots.
        TargetOptions.__post_init__(self)
        count = self.num_prompts
        check((
            ("--rounds", self.rounds >= 1, "be at least 1", self.rounds),
            ("--num-prompts", count is None or count >= 1, "be at least 1", count),
            ("--output-len", self.output_len >= 1, "be at least 1", self.output_len),
        ))  # fmt: skip
        self.numbers_of_clients()
        self.fields(with_speculation=False)
        self.fields(with_speculation=True)

    def numbers_of_clients(self) -> list[int]:
        """Return ``--concurrency`` as numbers."""
        parts = self.concurrency.split(",")
        found = [int(part) for part in parts if part.strip().isdecimal()]
        if len(found) != len(parts) or min(found) < 1 or len(set(found)) != len(found):
            raise ConfigError(
                "[bench] --concurrency must be different numbers from 1, by commas; got "
                f"{self.concurrency!r}."
            )
        return found

    def part_size(self, concurrency: int) -> int:
        """Return the requests of a part; at least two a client unless told otherwise."""
        if self.num_prompts is not None:
            return self.num_prompts
        return max(2 * concurrency, math.ceil(NEEDED_SAMPLES / self.rounds))

    def fields(self, *, with_speculation: bool) -> dict[str, Any]:
        """Return the request fields that ask for speculation, or for none."""
        if not with_speculation:
            return parse_fields("--without", self.without)
        if self.speculative is None:
            return {}
        try:
            return {"speculative": msgspec.json.decode(self.speculative)}
        except msgspec.DecodeError as error:
            raise ConfigError(f"[bench] --speculative must be JSON; got {error}.") from error
