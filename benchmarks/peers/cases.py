"""What is compared, and how many bytes and operations each case must move and do at least."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.core.model.model_config import ModelConfig
from quire.models.gguf.gguf_config import read_gguf_config

DEEP = 2048
BATCH_DEPTH = 16
BATCHES = (2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        group: What ``--case`` selects.
        command: Sent to both workers.
        every: Measured in every so manieth round: the long ones in fewer.
        is_disturbed: A neighbour computes meanwhile.
    """

    name: str
    group: str
    command: dict[str, Any]
    every: int = 1
    is_disturbed: bool = False


def _decode(batch: int, depth: int, steps: int) -> dict[str, Any]:
    return {"kind": "decode", "batch": batch, "depth": depth, "steps": steps}


CASES = (
    Case("decode, batch 1", "decode", _decode(1, 1, 16)),
    Case("prefill 512", "prefill", {"kind": "prefill", "tokens": 512}),
    # One command for both: its prompt is the prefill of 2,048.
    Case(f"decode at {DEEP}", "deep", _decode(1, DEEP, 8), every=2),
    Case("decode with a busy neighbour", "neighbour", _decode(1, 1, 32), is_disturbed=True),
    *(Case(f"decode, batch {n}", "batch", _decode(n, BATCH_DEPTH, 6 if n < 16 else 4))
      for n in BATCHES),
)  # fmt: skip
PREFILL_DEEP = f"prefill {DEEP}"
GROUPS = tuple(dict.fromkeys(case.group for case in CASES)) + ("memory",)


def rates(case: Case, answer: Any) -> dict[str, float]:
    """Return tokens per second of a worker's answer, by name of the table's line."""
    command = case.command
    if command["kind"] == "prefill":
        return {case.name: command["tokens"] / answer}
    found = {case.name: command["batch"] / statistics.median(answer["steps"])}
    if command["depth"] == DEEP:
        found[PREFILL_DEEP] = DEEP / answer["prefill"]
    return found


@dataclass(frozen=True)
class Work:
    """Least bytes read and operations done per token, from the file alone.

    Attributes:
        file_bytes: Of the tensors that a step reads whole (the embedding only where it is the
            output matrix too).
        matrix_params: Elements of the layers' matrices.
        head_params: Elements of the output matrix.
        kv_bytes: Of one token in the cache, 16-bit.
        attention_ops: Operations of one token for each token before it.
    """

    file_bytes: int
    matrix_params: int
    head_params: int
    kv_bytes: int
    attention_ops: int

    @classmethod
    def of(cls, path: Path) -> Work:
        """Read a GGUF file."""
        file = GgufFile(path)
        config: ModelConfig = read_gguf_config(file)
        tied = "output.weight" not in file.tensors
        matrices = head = size = 0
        for name, tensor in file.tensors.items():
            elements = math.prod(tensor.shape)
            is_head = name == ("token_embd.weight" if tied else "output.weight")
            if name != "token_embd.weight" or tied:
                size += tensor.end - tensor.begin
            if is_head:
                head = elements
            elif len(tensor.shape) > 1 and name != "token_embd.weight":
                matrices += elements
        per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        attention = 4 * config.num_layers * config.num_heads * config.head_dim
        return cls(size, matrices, head, per_token * 2, attention)

    def decode(self, batch: int, depth: int) -> tuple[float, float]:
        """Return bytes and operations of a step, each divided by its tokens."""
        read = self.file_bytes / batch + self.kv_bytes * depth
        return read, 2 * (self.matrix_params + self.head_params) + self.attention_ops * depth

    def prefill(self, tokens: int) -> tuple[float, float]:
        """Return bytes and operations of a prompt's token; the head serves the last one only."""
        operations = 2 * (self.matrix_params + self.head_params / tokens)
        return self.file_bytes / tokens, operations + self.attention_ops * tokens / 2

    def per_token(self, name: str, case: Case) -> tuple[float, float]:
        """Return bytes and operations per token of a line of the table."""
        if name == PREFILL_DEEP:
            return self.prefill(DEEP)
        command = case.command
        if command["kind"] == "prefill":
            return self.prefill(command["tokens"])
        return self.decode(command["batch"], command["depth"] + command["steps"] // 2)
