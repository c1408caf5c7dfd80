"""The nearest vector of E8P to each vector of 8 numbers.

Source: Tseng et al. 2024 (QuIP#): signs are taken off first, and the search is among what is left.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from quire.kernels.matrices.lattice_codes import SIZE, STEP, encode, vectors

#: Vectors that are looked for at a time: scores of all candidates stay in the cache.
CHUNK = 512


@cache
def _candidates() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what may be nearest to a vector whose first 7 numbers are not negative.

    Of weights with the wrong sign at most one is among the first 7, and that one is 1/2: any other
    vector has one nearer by that is allowed. The last weight's sign is then what the sum asks for.

    Returns:
        Matrix (9, candidates) float32, whose product with (x, 1) is the larger the nearer each is;
        numbers of vectors, (candidates,); weights that are their vector's opposite, (candidates, 8)
        bool.
    """
    halves = vectors().astype(np.float32) / 2
    numbers, negative = [], []
    for number, vector in enumerate(vectors()):
        flipped = [None, *(i for i in range(SIZE - 1) if vector[i] == 1)]
        for weight in flipped:
            signs = np.zeros(SIZE, bool)
            if weight is not None:
                signs[[weight, SIZE - 1]] = True
            numbers.append(number)
            negative.append(signs)
    found, opposite = np.array(numbers), np.array(negative)
    values = halves[found] * np.where(opposite, np.float32(-1), np.float32(1))
    scores = np.concatenate([2 * values.T, -np.square(values).sum(axis=1)[None]])
    return np.ascontiguousarray(scores, np.float32), found, opposite


def nearest_codes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of the nearest vectors.

    Args:
        x: (n, 8) float32.

    Returns:
        Codes (n,) uint16 and what they stand for, (n, 8) float32.
    """
    codes, values = np.empty(len(x), np.uint16), np.empty(x.shape, np.float32)
    for begin in range(0, len(x), CHUNK):
        part = slice(begin, begin + CHUNK)
        codes[part], values[part] = _nearest(x[part])
    return codes, values


def _nearest(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores, candidates, opposite = _candidates()
    step = np.float32(STEP)
    moved = np.concatenate([x + step, x - step])  # of what 1/4 is subtracted from, and added to
    negative = moved < 0
    odd = negative.sum(axis=1) % 2 == 1
    negative[odd, -1] ^= True  # an even number, so that the last may be what is left
    signs = np.where(negative, np.float32(-1), np.float32(1))
    plain = np.ones((len(moved), SIZE + 1), np.float32)
    plain[:, :SIZE] = moved * signs
    best = (plain @ scores).argmax(axis=1)
    found = scores[:SIZE, best].T / 2 * signs
    errors = np.square(moved - found).sum(axis=1)
    subtracted = errors[: len(x)] < errors[len(x) :]
    chosen = np.where(subtracted, np.arange(len(x)), np.arange(len(x)) + len(x))
    codes = encode(candidates[best[chosen]], (negative ^ opposite[best])[chosen], subtracted)
    return codes, found[chosen] + np.where(subtracted, -step, step)[:, None]
