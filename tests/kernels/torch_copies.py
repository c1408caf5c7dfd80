"""Inputs of the CPU backend as inputs of the reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch


def tensors(value: Any) -> Any:
    """Copy numpy arrays to torch, inside tuples, dicts and dataclasses too."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, tuple):
        return tuple(tensors(item) for item in value)
    if isinstance(value, dict):
        return {name: tensors(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return type(value)(**{f.name: tensors(getattr(value, f.name)) for f in fields})
    return value
