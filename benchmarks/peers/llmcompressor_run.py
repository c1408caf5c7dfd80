"""GPTQ by llmcompressor, in its own environment: ``CHECKPOINT OUT SAMPLES LENGTH THREADS``.

Prints the seconds of the call alone; imports and loading the model are left out, in its favour.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    checkpoint, out = sys.argv[1:3]
    samples, length, threads = map(int, sys.argv[3:])
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = np.random.default_rng(0).integers(5, 250, (samples, length))
    rows = {"input_ids": ids.tolist(), "attention_mask": np.ones_like(ids).tolist()}
    start = time.perf_counter()
    oneshot(
        model=model,
        processor=AutoTokenizer.from_pretrained(checkpoint),
        dataset=Dataset.from_dict(rows),
        recipe=GPTQModifier(targets="Linear", scheme="W4A16", ignore=["lm_head"], actorder=None),
        pipeline="basic",
        num_calibration_samples=samples,
        max_seq_length=length,
    )
    seconds = time.perf_counter() - start
    model.save_pretrained(out, save_compressed=True)
    print(f"seconds {seconds}")


if __name__ == "__main__":
    main()
