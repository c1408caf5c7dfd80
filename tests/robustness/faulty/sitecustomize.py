"""Faults inside the real processes: Python runs this first in each that has it on its path.

A file of a fault's name in ``FAULTS`` arms it; it strikes once, and the file is gone.
"""

import os
from pathlib import Path

from quire.runner.model_runner import ModelRunner
from quire.text.detokenizer import Detokenizer
from quire.text.tokenizer import Tokenizer

FAULTS = Path(os.environ["FAULTS"])


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


faulty(ModelRunner, "execute", {"kernel": RuntimeError, "kernel-memory": MemoryError})
faulty(Tokenizer, "encode", {"tokenizer": RuntimeError, "tokenizer-panic": PanicException})
faulty(Detokenizer, "add", {"detokenizer": RuntimeError})
