"""The interface of stored formats, and the parts that formats of integers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from quire.checkpoints.safetensors_writer import TensorData, tensor_data
from quire.core.errors import ConfigError
from quire.core.plurals import counted
from quire.quantizing.methods import METHODS
from quire.quantizing.scheme import QuantizationScheme

Schemes = Mapping[str, QuantizationScheme]
Shapes = Mapping[str, tuple[int, int]]
#: Formats whose readers look for a quantized output head, and what it is called there.
HEAD_FORMATS, HEAD = ("gptq", "compressed-tensors"), "lm_head"
#: Codes of both dims come in multiples of this, so that words of any width are full.
MULTIPLE = 32


@dataclass(slots=True)
class Fitting:
    """Schemes that a format can hold, of those that were asked for.

    Attributes:
        name: The format's name.
        fitted: Schemes by module.
        notices: Lines on what differs from the request.
    """

    name: str
    fitted: dict[str, QuantizationScheme] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def check(self, schemes: Schemes) -> None:
        """Refuse methods whose matrices the format cannot hold.

        Raises:
            ConfigError: A method's matrices do not fit; it names the method and the formats that
                can hold them.
        """
        for module, scheme in schemes.items():
            formats = METHODS[scheme.method].formats
            if self.name not in formats:
                raise ConfigError(
                    f"[quantize] --format {self.name} cannot store --method {scheme.method}; got "
                    f"it for {module}. Use --format {' or '.join(formats)}."
                )

    def keep(
        self,
        schemes: Schemes,
        shapes: Shapes,
        refusal: Callable[[QuantizationScheme, tuple[int, int]], str],
    ) -> None:
        """Take over all matrices but those that a rule refuses.

        Args:
            schemes: Schemes by module.
            shapes: (N, K) by module.
            refusal: A function that returns the rule that a matrix breaks, empty where it breaks
                none.
        """
        reasons: dict[str, list[str]] = {}
        for module, scheme in schemes.items():
            reason = refusal(scheme, shapes[module])
            if reason:
                reasons.setdefault(reason, []).append(module)
            else:
                self.fitted[module] = scheme
        for reason, modules in reasons.items():
            self.notices.append(
                f"{counted(len(modules), 'matrix', 'matrices')} left as floats, since {self.name} "
                f"{reason}: {', '.join(modules[:3])}"
            )

    def group(self, shapes: Shapes, size_of: Callable[[QuantizationScheme, int], int]) -> None:
        """Choose the sizes of groups anew.

        Args:
            shapes: (N, K) by module.
            size_of: A function that returns the group size for a scheme and K.
        """
        sizes: dict[tuple[int, int], int] = {}
        for module, scheme in self.fitted.items():
            width = shapes[module][1]
            size = size_of(scheme, width)
            sizes[(scheme.group_size, width)] = size
            if size != scheme.group_size:
                self.fitted[module] = replace(scheme, group_size=size)
        for (asked, width), size in sizes.items():
            if size != asked:
                self.notices.append(
                    f"rows of {width} have groups of {size}, not {asked}: {self.name} wants groups "
                    "that divide a row"
                )
            elif asked > 0 and width % asked and asked < width:
                self.notices.append(
                    f"rows of {width} end with a group of {width % asked}, shorter than {asked}"
                )


class StoredFormat(ABC):
    """A format that other programs read.

    Attributes:
        name: The format's name in ``--format``.
    """

    name: ClassVar[str]

    def fit(
        self, schemes: Schemes, shapes: Shapes
    ) -> tuple[dict[str, QuantizationScheme], list[str]]:
        """Choose groups that divide rows where the format asks for it.

        Args:
            schemes: Schemes by module, without those that stay floats.
            shapes: (N, K) by module.

        Returns:
            Schemes of the matrices that will be quantized, and notices on what differs from the
            request.

        Raises:
            ConfigError: The format cannot say the schemes.
        """
        fitting = Fitting(self.name)
        fitting.check(schemes)
        self._fit(fitting, schemes, shapes)
        return fitting.fitted, fitting.notices

    @abstractmethod
    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Take over the schemes whose matrices fit; see :meth:`fit`."""

    def store(self, matrix: Any, scheme: QuantizationScheme) -> dict[str, TensorData]:
        """Return the parts of a matrix by name.

        Args:
            matrix: The matrix as its method made it: a QuantizedTensor, or another type that the
                format is made for.
            scheme: The scheme that it was made by.
        """
        return {name: tensor_data(a) for name, a in self._arrays(matrix, scheme).items()}

    def _arrays(self, matrix: Any, scheme: QuantizationScheme) -> dict[str, np.ndarray]:
        """Return the parts of a matrix whose types are those of the arrays; see :meth:`store`."""
        raise NotImplementedError

    @abstractmethod
    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return ``quantization_config``.

        Args:
            schemes: Schemes by module.
            floats: Linears that stay floats.
        """


def words_only(_: QuantizationScheme, shape: tuple[int, int]) -> str:
    """Refuse matrices whose codes do not fill words."""
    if any(size % MULTIPLE for size in shape):
        return f"packs rows and columns in multiples of {MULTIPLE}"
    return ""


def dividing_group(scheme: QuantizationScheme, width: int) -> int:
    """Return the size of a scheme's groups, or the next smaller one that divides a row."""
    size = scheme.group_size
    return size if size == -1 else largest_group(size, width)


def largest_group(size: int, width: int) -> int:
    """Return the largest group of at most ``size`` that divides ``width``, a multiple of 32."""
    return next(s for s in range(min(size, width) // 32 * 32 or 16, 0, -16) if width % s == 0)


def kinds_of(
    schemes: Schemes, kind_of: Callable[[QuantizationScheme], Hashable]
) -> list[tuple[QuantizationScheme, list[str]]]:
    """Return a scheme of each kind and the modules that have it, the most frequent kind first."""
    kinds: dict[Hashable, list[str]] = {}
    for module, scheme in schemes.items():
        kinds.setdefault(kind_of(scheme), []).append(module)
    found = sorted(kinds.values(), key=lambda modules: -len(modules))
    return [(schemes[modules[0]], modules) for modules in found]


def integers_of(scheme: QuantizationScheme) -> Hashable:
    """Return what files tell of a scheme of integers in groups."""
    return scheme.bits, scheme.group_size, scheme.symmetric, scheme.act_order
