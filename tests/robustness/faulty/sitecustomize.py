"""Faults inside the real processes: Python runs this first in each that has it on its path.

A file of a fault's name in ``FAULTS`` arms it; it strikes once, and the file is gone. Some token
ids are poison: a step with four of them in a row fails.
"""

import os
from pathlib import Path

from quire.models.decoder import Decoder
from quire.runner.step.model_runner import ModelRunner
from quire.system import background_stream
from quire.text.tokenizers.detokenizer import Detokenizer
from quire.text.tokenizers.tokenizer import Tokenizer

FAULTS = Path(os.environ["FAULTS"])
background_stream.FLUSH_SECONDS = 60.0  # tests read the last lines, too


class PanicException(BaseException):
    """As Rust libraries raise it: no ``Exception``."""


def strikes(name):
    try:
        (FAULTS / name).unlink()
    except FileNotFoundError:
        return False
    return True


def faulty(kind, method, errors):
    healthy = getattr(kind, method)

    def wrapper(*arguments, **keywords):
        for name, error in errors.items():
            if strikes(name):
                raise error("injected fault")
        return healthy(*arguments, **keywords)

    setattr(kind, method, wrapper)


def poisoned(errors):
    """A step that holds one of these token ids four times in a row fails, each time."""
    healthy = Decoder.forward

    def forward(self, batch, kv_cache, *rest):
        for token_id, error in errors.items():
            found = batch.input_ids == token_id
            if (found[:-3] & found[1:-2] & found[2:-1] & found[3:]).any():
                raise error("injected fault")
        return healthy(self, batch, kv_cache, *rest)

    Decoder.forward = forward


poisoned({300: RuntimeError, 301: MemoryError})
faulty(ModelRunner, "begin", {"kernel": RuntimeError, "kernel-memory": MemoryError})
faulty(Tokenizer, "encode", {"tokenizer": RuntimeError, "tokenizer-panic": PanicException})
faulty(Detokenizer, "add", {"detokenizer": RuntimeError})
