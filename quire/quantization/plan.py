"""Which matrices of a model are quantized at load, and how; and what stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from quire.core.config import KEEP, ModelOptions
from quire.core.errors import ConfigError
from quire.kernels.quantized_tensor import QuantizedForm
from quire.quantization.round_to_nearest import Scheme, create_scheme


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """What ``--quantization`` and ``--activations`` ask for.

    Attributes:
        layers: For the linears of the layers; None keeps the checkpoint's weights.
        tables: For embedding and output head; None keeps the checkpoint's weights.
        exact_activations: Multiply quantized weights with float32 activations.
        overrides: Patterns of modules' names with their own scheme, or None to keep the weights;
            the first that fits counts.
        own_activations: Round activations in the engine's groups, whatever a checkpoint says.
    """

    layers: Scheme | None = None
    tables: Scheme | None = None
    exact_activations: bool = False
    overrides: tuple[tuple[str, Scheme | None], ...] = ()
    own_activations: bool = False

    def scheme_of(self, module: str, default: Scheme | None) -> Scheme | None:
        """Return how the matrix of a module is rounded; ``default`` where no override fits."""
        for pattern, scheme in self.overrides:
            if fnmatchcase(module, pattern):
                return scheme
        return default

    def forms(
        self, modules: Iterable[str], columns: int, default: Scheme | None
    ) -> tuple[QuantizedForm | None, ...]:
        """Return how matrices of that many columns are rounded; None for those that are not."""
        schemes = [self.scheme_of(module, default) for module in modules]
        return tuple(None if scheme is None else scheme.form(columns) for scheme in schemes)

    def check_overrides(self, modules: Iterable[str]) -> None:
        """Refuse overrides that would do nothing.

        Args:
            modules: Names of all matrices.

        Raises:
            ConfigError: A pattern fits none of them.
        """
        modules = sorted(modules)
        for pattern, _ in self.overrides:
            if not any(fnmatchcase(module, pattern) for module in modules):
                kinds = list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in modules))
                raise ConfigError(
                    f"[load] --quantization-overrides must name matrices of the model; got "
                    f"{pattern}, which fits none of {', '.join(kinds)}."
                )

    @property
    def held(self) -> str:
        """What decides how weights are held."""
        return f"{self.layers} {self.tables} {self.overrides} {self.own_activations}"


def create_plan(options: ModelOptions) -> QuantizationPlan:
    """Return the plan of an engine's settings."""
    exact, size = options.activations == "fp32", options.quantization_group_size
    overrides = tuple(
        (pattern, None if name == KEEP else create_scheme(name, size))
        for pattern, name in options.overrides()
    )
    if options.quantization is None:
        own = options.activations == "int8"
        return QuantizationPlan(None, None, exact, overrides, own)
    layers = create_scheme(options.quantization, size)
    return QuantizationPlan(layers, create_scheme("int8", size), exact, overrides)
