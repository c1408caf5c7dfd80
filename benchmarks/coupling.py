"""How often a draft's draw is the target's when both draw with the same seed and position.

    python -m benchmarks.coupling

Speculation keeps a proposal where draft (distribution q) and target (p) drew the same token. For
two ways to draw this computes how often that is, exactly, not by drawing:

- *inverse*: one uniform number, and the first id at which the running weight exceeds it;
- *race*: a number for each token, as ``kernels/sampling.py`` defines it (Daliri, Musco and Suresh
  2025 for the bounds).

No way to draw can agree more often than 1 - TV, and one that does not know the other's
distribution cannot promise more than (1 - TV) / (1 + TV). Distributions: quire-tiny's and its
draft's over held-out text, and Zipf's law over 151,936 tokens with noise on the draft's logits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks import results
from benchmarks.quality import quire_logits, text_windows
from quire.kernels.reference.sampling import kept_weights, penalized
from quire.models.hub import resolve_model
from tests.kernels.sampling_cases import batch
from tests.kernels.torch_copies import tensors

SETTINGS: list[dict[str, Any]] = [
    {"temperature": temperature, **cut}
    for temperature in (0.5, 0.8, 1.0)
    for cut in ({}, {"top_p": 0.9}, {"top_k": 50})
]
LARGE = 151_936
#: Deviations of the noise that come to a total variation of about 0.1 to 0.5.
NOISE = (0.25, 0.5, 0.8, 1.1, 1.5)


def distributions(logits: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """Return what rows of logits (B, V) are drawn from, (B, V) float64."""
    rows = torch.from_numpy(logits)
    given = tensors(batch(len(rows), **settings))
    kept = [kept_weights(penalized(rows, given, i), given, i).numpy() for i in range(len(rows))]
    return np.array([weights / weights.sum() for weights in kept])


def agreement_of_inverse(p: np.ndarray, q: np.ndarray) -> float:
    """Return the probability that one uniform number falls into the same token of p and of q."""
    ends = np.minimum(p.cumsum(), q.cumsum())
    starts = np.maximum(p.cumsum() - p, q.cumsum() - q)
    return float(np.maximum(ends - starts, 0).sum())


def agreement_of_race(p: np.ndarray, q: np.ndarray) -> float:
    """Return the probability that the same token wins with the same exponential numbers.

    Token i wins both where each other j has ``E_j > E_i max(p_j / p_i, q_j / q_i)``, which happens
    with probability ``1 / sum_j max(p_j / p_i, q_j / q_i)``.
    """
    both = (p > 0) | (q > 0)
    p, q = p[both], q[both]
    with np.errstate(divide="ignore"):
        order = np.argsort(q / p)
    p, q = p[order], q[order]
    up_to, after = p.cumsum(), q[::-1].cumsum()[::-1] - q
    with np.errstate(divide="ignore"):
        return float((1 / (up_to / p + after / q)).sum())


def compare(p: np.ndarray, q: np.ndarray) -> dict[str, float]:
    """Return means over rows of p and q (B, V)."""
    tv = np.abs(p - q).sum(axis=1) / 2
    pairs = list(zip(p, q, strict=True))
    figures = {
        "total_variation": tv.mean(),
        "inverse": np.mean([agreement_of_inverse(*pair) for pair in pairs]),
        "race": np.mean([agreement_of_race(*pair) for pair in pairs]),
        "race_at_least": np.mean((1 - tv) / (1 + tv)),
        "at_most": np.mean(1 - tv),
    }
    return {name: round(float(value), 4) for name, value in figures.items()}


def trained(windows: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each setting: quire-tiny as target, its draft as draft."""
    target = resolve_model("quire-tiny")
    text = text_windows(target, windows, 256)
    folders = (target, target.with_name("quire-tiny-draft"))
    logits = [np.concatenate(list(quire_logits(folder, text, {}))) for folder in folders]
    for settings in SETTINGS:
        p, q = (distributions(rows, settings) for rows in logits)
        case = {"logits": "quire-tiny and its draft", "vocab": p.shape[1], **settings}
        yield case | compare(p, q)


def synthetic(rows: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each amount of noise, over a large vocabulary."""
    random = np.random.default_rng(0)
    target = random.permuted(np.tile(-1.2 * np.log(np.arange(LARGE) + 2.7), (rows, 1)), axis=1)
    noise = random.standard_normal(target.shape)
    for deviation in NOISE:
        for settings in ({}, {"top_p": 0.9}, {"top_k": 50}):
            p = distributions(target.astype(np.float32), settings)
            q = distributions((target + deviation * noise).astype(np.float32), settings)
            case = {"logits": f"Zipf, noise {deviation}", "vocab": LARGE, **settings}
            yield case | compare(p, q)


def main() -> None:
    """Compute, print a line a case, write ``results/coupling.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=4, help="of 256 tokens of held-out text")
    parser.add_argument("--rows", type=int, default=4, help="of each synthetic case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for row in (*trained(options.windows), *synthetic(options.rows)):
        found.append(row)
        print(row, flush=True)
    print(results.write("coupling", found).name)


if __name__ == "__main__":
    main()
