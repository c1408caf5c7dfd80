"""Cosine and sine tables of rotary position embeddings; the rotation itself is in the kernels.

P positions, R rotated elements of a head.
"""

from __future__ import annotations

import math

import numpy as np

from quire.core.model.model_config import QueryScaling, RopeConfig


def rope_table_bytes(rope: RopeConfig, num_positions: int) -> int:
    """Return the bytes of both tables."""
    return 2 * 4 * num_positions * (rope.rotary_dim // 2)


def rope_tables(rope: RopeConfig, num_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines of every position's angles.

    ``cos[p, i] = cos(p * inv_freq[i]) * attention_factor``, angles in float32 as the reference
    implementations compute them.

    Args:
        rope: Base, width and scaling.
        num_positions: P, the longest context in tokens.

    Returns:
        Two (P, R / 2) float32 arrays.

    Source: Su et al. 2021 (RoFormer). CPU: native/cpu. The tests compare with transformers.
    """
    inv_freq, attention_factor = inverse_frequencies(rope, num_positions)
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * inv_freq
    cos, sin = np.cos(angles), np.sin(angles, out=angles)
    if attention_factor != 1.0:
        cos *= np.float32(attention_factor)
        sin *= np.float32(attention_factor)
    return cos, sin


def query_scales(scaling: QueryScaling, num_positions: int) -> np.ndarray:
    """Return the factor on queries at each position, (P,) float32."""
    positions = np.arange(num_positions, dtype=np.float32) + np.float32(scaling.first)
    steps = np.floor(positions / np.float32(scaling.length))
    scales: np.ndarray = 1 + np.float32(scaling.factor) * np.log1p(steps)
    return scales


def inverse_frequencies(rope: RopeConfig, num_positions: int) -> tuple[np.ndarray, float]:
    """Return angles per position (R / 2,) float32, and the factor on cosines and sines.

    NOTE: dynamic NTK scaling would give a growing request new frequencies at every length, which
    cached keys cannot follow. One table serves all: unscaled while ``num_positions`` is within the
    original context, otherwise scaled for ``num_positions``.
    """
    scaling = rope.scaling
    theta = rope.theta
    if scaling is None:
        return _frequencies(theta, rope.rotary_dim), 1.0
    if scaling["rope_type"] == "factors":
        factors = np.array(scaling["factors"], np.float32)
        return _frequencies(theta, rope.rotary_dim) / factors, 1.0
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    match scaling["rope_type"]:
        case "linear":
            return _frequencies(theta, rope.rotary_dim) / np.float32(factor), 1.0
        case "dynamic":
            # Rearranged from factor * length / original - (factor - 1), which loses the 1 when the
            # factor is huge.
            stretch = 1 + factor * (max(num_positions, original) / original - 1)
            theta *= stretch ** (rope.rotary_dim / max(rope.rotary_dim - 2, 1))
            return _frequencies(theta, rope.rotary_dim), 1.0
        case "llama3":
            return _llama3(rope), 1.0
        case "longrope":
            return _longrope(rope, num_positions)
        case "yarn":
            return _yarn(rope), _yarn_attention_factor(rope)
    raise AssertionError(f"rope_type {scaling['rope_type']} passed the configuration reader")


def _frequencies(theta: float, rotary_dim: int) -> np.ndarray:
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    frequencies: np.ndarray = np.float32(1) / np.power(np.float32(theta), exponents)
    return frequencies


def _llama3(rope: RopeConfig) -> np.ndarray:
    """Slow down long wavelengths by ``factor``, keep short ones, blend in between (Llama 3.1)."""
    assert rope.scaling is not None
    factor, original = rope.scaling["factor"], rope.scaling["original_max_position_embeddings"]
    low, high = rope.scaling["low_freq_factor"], rope.scaling["high_freq_factor"]
    inv_freq = _frequencies(rope.theta, rope.rotary_dim)
    wavelength = np.float32(2 * math.pi) / inv_freq
    # Where both factors are the same there is nothing in between.
    width = np.float32(high - low if high > low else 1)
    share = (np.float32(original) / wavelength - np.float32(low)) / width
    slow = inv_freq / np.float32(factor)
    blend = (1 - share) * slow + share * inv_freq
    result = np.where(wavelength > original / low, slow, blend)
    return np.where(wavelength < original / high, inv_freq, result)


def _longrope(rope: RopeConfig, num_positions: int) -> tuple[np.ndarray, float]:
    """Divide each frequency by a factor of its own, found by search (Ding et al. 2024).

    There are two sets, for contexts within the original one and beyond: as for dynamic scaling one
    table serves all, chosen by ``num_positions``.
    """
    assert rope.scaling is not None
    original = rope.scaling["original_max_position_embeddings"]
    kind = "long_factor" if num_positions > original else "short_factor"
    factors = np.array(rope.scaling[kind], np.float32)
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    frequencies = np.float32(1) / (factors * np.power(np.float32(rope.theta), exponents))
    attention = rope.scaling.get("attention_factor")
    if attention is None:
        attention = longrope_attention(rope.scaling["factor"], original)
    return frequencies, float(attention)


def longrope_attention(stretch: float, original: int) -> float:
    """Return LongRoPE's factor on cosines and sines.

    Args:
        stretch: The longest context over the original one.
        original: The original context, in tokens.
    """
    return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0


def _yarn(rope: RopeConfig) -> np.ndarray:
    """Blend interpolated and original frequencies over a ramp of dims (Peng et al. 2023)."""
    assert rope.scaling is not None
    scaling, dim = rope.scaling, rope.rotary_dim

    def dim_of(rotations: float) -> float:
        wavelengths = scaling["original_max_position_embeddings"] / (rotations * 2 * math.pi)
        return dim * math.log(wavelengths) / (2 * math.log(rope.theta))

    low, high = dim_of(scaling["beta_fast"]), dim_of(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # Equal ends would divide by zero; the ramp is then a step.
    span = high - low or 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / np.float32(span), 0, 1)
    inv_freq = _frequencies(rope.theta, dim)
    blend: np.ndarray = inv_freq / np.float32(scaling["factor"]) * ramp + inv_freq * (1 - ramp)
    return blend


def _yarn_attention_factor(rope: RopeConfig) -> float:
    assert rope.scaling is not None
    scaling = rope.scaling
    if "attention_factor" in scaling:
        return float(scaling["attention_factor"])

    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling["factor"]) + 1.0 if scaling["factor"] > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
    return magnitude(1.0)
