"""Write llama.cpp's logits for windows of tokens; runs in the peer's environment.

    python llama_cpp_logits.py FILE.gguf TOKENS.npy OUT.npy THREADS

TOKENS is (windows, tokens) int32, OUT (windows, tokens, vocabulary) float32; a window starts anew.
"""

from __future__ import annotations

import sys

import numpy as np
from llama_cpp import Llama


def main(path: str, tokens_path: str, out_path: str, threads: str) -> None:
    """Run all windows."""
    windows = np.load(tokens_path)
    count, length = windows.shape
    model = Llama(
        path,
        n_ctx=length,
        n_batch=length,
        n_threads=int(threads),
        n_threads_batch=int(threads),
        logits_all=True,
        verbose=False,
    )
    shape = (count, length, model.n_vocab())
    logits = np.lib.format.open_memmap(out_path, "w+", np.float32, shape)
    for i, window in enumerate(windows):
        model.reset()
        model.eval(window.tolist())
        logits[i] = model.scores[:length]


if __name__ == "__main__":
    main(*sys.argv[1:])
