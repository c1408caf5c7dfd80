"""A server that keeps something of each request; Python runs this first in its processes."""

import ctypes

from benchmarks.robustness import growth_probe
from quire.runner.step.model_runner import ModelRunner
from quire.text.tokenizers.tokenizer import Tokenizer

kept, steps = [], []
malloc = ctypes.CDLL(None).malloc
healthy_encode, healthy_begin = Tokenizer.encode, ModelRunner.begin


def encode(self, text, *arguments, **keywords):
    kept.append([{"text": text}, *({} for _ in range(8))])
    return healthy_encode(self, text, *arguments, **keywords)


def begin(self, *arguments, **keywords):
    steps.append(malloc(1024))
    return healthy_begin(self, *arguments, **keywords)


Tokenizer.encode, ModelRunner.begin = encode, begin
growth_probe.start()
