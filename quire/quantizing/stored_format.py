"""What each stored format takes and how it is said in ``config.json``; layouts are elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quire.core.errors import ConfigError
from quire.kernels.quantized_tensor import QuantizedTensor
from quire.quantization.formats.awq import store_awq
from quire.quantization.formats.compressed_tensors import store_packed_integers
from quire.quantization.formats.gptq import store_gptq
from quire.quantizing.scheme import Scheme

Schemes = Mapping[str, Scheme]
Shapes = Mapping[str, tuple[int, int]]
#: Codes of both dims come in multiples of this, so that words of any width are full.
MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """A format that other programs read.

    Attributes:
        name: As ``--format`` and ``quant_method`` have it.
        short_groups: The last group of a row may be shorter than the others.
        one_scheme: All matrices have the same bits and groups.
        act_order: Columns may be in another order than the inputs.
    """

    name: str
    short_groups: bool = False
    one_scheme: bool = False
    act_order: bool = True

    def fit(self, schemes: Schemes, shapes: Shapes) -> tuple[dict[str, Scheme], list[str]]:
        """Choose groups that divide rows where the format asks for it.

        Args:
            schemes: By module; those that stay floats are not there.
            shapes: (N, K) by module.

        Returns:
            Schemes of what will be quantized, and what differs from what was asked for.

        Raises:
            ConfigError: The format cannot say the schemes.
        """
        notices: list[str] = []
        fitted: dict[str, Scheme] = {}
        odd = [name for name in schemes if any(size % MULTIPLE for size in shapes[name])]
        if odd:
            notices.append(
                f"{len(odd)} matrices stay floats, since {self.name} packs rows and columns in "
                f"multiples of {MULTIPLE}: {', '.join(odd[:3])}"
            )
        widths: dict[tuple[int, int], int] = {}
        kept = {name: scheme for name, scheme in schemes.items() if name not in odd}
        for name, scheme in kept.items():
            self._check(name, scheme)
            width = shapes[name][1]
            size = scheme.group_size
            if not self.short_groups and size != -1:
                size = largest_group(size, width)
            widths[(scheme.group_size, width)] = size
            fitted[name] = replace(scheme, group_size=size)
        if self.one_scheme and fitted:
            fitted = self._agree(fitted, shapes)
            widths = {(kept[n].group_size, shapes[n][1]): s.group_size for n, s in fitted.items()}
        for (asked, width), size in widths.items():
            if size != asked:
                notices.append(
                    f"rows of {width} have groups of {size}, not {asked}: {self.name} wants groups "
                    "that divide a row"
                )
            elif asked > 0 and width % asked and asked < width:
                notices.append(
                    f"rows of {width} end with a group of {width % asked}, shorter than {asked}"
                )
        return fitted, notices

    def store(self, matrix: QuantizedTensor) -> dict[str, np.ndarray]:
        """Return the parts of a matrix by name."""
        if self.name == "awq":
            return store_awq(matrix)
        if self.name == "gptq":
            return store_gptq(matrix, zeros_less_one=matrix.zeros is None)
        return store_packed_integers(matrix)

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return ``quantization_config``.

        Args:
            schemes: By module.
            floats: Linears that stay floats.
        """
        return _CONFIGS[self.name](schemes, floats)

    def _check(self, name: str, scheme: Scheme) -> None:
        if self.name == "awq" and scheme.bits != 4:
            raise ConfigError(
                f"[quantize] --format awq stores 4 bits only; got {scheme.bits} for {name}. Use "
                "--format gptq or compressed-tensors."
            )
        if scheme.act_order and not self.act_order:
            raise ConfigError(
                f"[quantize] --format {self.name} cannot store --act-order; got it for {name}. Use "
                "--format gptq or compressed-tensors."
            )

    def _agree(self, schemes: Schemes, shapes: Shapes) -> dict[str, Scheme]:
        kinds = {(scheme.bits, scheme.symmetric) for scheme in schemes.values()}
        if len(kinds) > 1:
            raise ConfigError(
                f"[quantize] --format {self.name} stores all matrices alike; got a recipe with "
                f"{len(kinds)} kinds. Use --format gptq or compressed-tensors."
            )
        sizes = [scheme.group_size for scheme in schemes.values()]
        if set(sizes) == {-1}:
            return dict(schemes)
        size = min(size for size in sizes if size != -1)
        for name in schemes:
            size = largest_group(size, shapes[name][1])
        return {name: replace(scheme, group_size=size) for name, scheme in schemes.items()}


FORMATS = {
    form.name: form
    for form in (
        StoredFormat("gptq", short_groups=True),
        StoredFormat("compressed-tensors"),
        StoredFormat("awq", one_scheme=True, act_order=False),
    )
}


def largest_group(size: int, width: int) -> int:
    """Return the largest group of at most ``size`` that divides ``width``, a multiple of 32."""
    return next(s for s in range(min(size, width) // 32 * 32 or 16, 0, -16) if width % s == 0)


def _gptq_config(schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
    whole, *others = _by_count(schemes)
    version_2 = {not scheme.symmetric for scheme in schemes.values()}
    if len(version_2) > 1:
        raise ConfigError(
            "[quantize] --format gptq stores zeros of all matrices alike; got a recipe of "
            "symmetric and asymmetric ones. Use --format compressed-tensors."
        )
    dynamic: dict[str, Any] = {_exact("-:", name): {} for name in floats}
    for scheme in others:
        for name in _modules(schemes, scheme):
            dynamic[_exact("+:", name)] = {
                "bits": scheme.bits,
                "group_size": scheme.group_size,
                "sym": scheme.symmetric,
                "desc_act": scheme.act_order,
            }
    return {
        "quant_method": "gptq",
        "checkpoint_format": "gptq_v2" if True in version_2 else "gptq",
        "bits": whole.bits,
        "group_size": whole.group_size,
        "sym": whole.symmetric,
        "desc_act": whole.act_order,
        "damp_percent": whole.damping,
        "true_sequential": False,
        "lm_head": False,
        **({"dynamic": dynamic} if dynamic else {}),
    }


def _awq_config(schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
    whole = _by_count(schemes)[0]
    return {
        "quant_method": "awq",
        "version": "gemm",
        "bits": whole.bits,
        "group_size": whole.group_size,
        "zero_point": not whole.symmetric,
        "modules_to_not_convert": list(floats) or None,
    }


def _compressed_config(schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
    groups = {}
    kinds = _by_count(schemes)
    for number, scheme in enumerate(kinds):
        exact = [f"re:{re.escape(name)}$" for name in _modules(schemes, scheme)]
        row = scheme.group_size == -1
        groups[f"group_{number}"] = {
            "targets": ["Linear"] if len(kinds) == 1 else exact,
            "weights": {
                "num_bits": scheme.bits,
                "type": "int",
                "symmetric": scheme.symmetric,
                "strategy": "channel" if row else "group",
                "group_size": None if row else scheme.group_size,
                "actorder": "group" if scheme.act_order else None,
                "dynamic": False,
            },
            "input_activations": None,
            "output_activations": None,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [*floats, "lm_head"],
        "kv_cache_scheme": None,
    }


_CONFIGS: dict[str, Callable[[Schemes, Sequence[str]], dict[str, Any]]] = {
    "gptq": _gptq_config,
    "awq": _awq_config,
    "compressed-tensors": _compressed_config,
}


def _kind(scheme: Scheme) -> Scheme:
    """Return a scheme without what files do not tell."""
    return replace(scheme, method="gptq", damping=0.01)


def _by_count(schemes: Schemes) -> list[Scheme]:
    """Return the different kinds of schemes, the most frequent first."""
    counts: dict[Scheme, int] = {}
    for scheme in schemes.values():
        counts[_kind(scheme)] = counts.get(_kind(scheme), 0) + 1
    return sorted(counts, key=lambda kind: -counts[kind])


def _modules(schemes: Schemes, kind: Scheme) -> list[str]:
    return [name for name, scheme in schemes.items() if _kind(scheme) == kind]


def _exact(sign: str, name: str) -> str:
    return f"{sign}^{re.escape(name)}$"
