"""The plan of quantization at load: matrices that are quantized, and those that stay floats."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.core.model.quantization_names import QUANTIZATIONS
from quire.kernels.matrices.quantized_tensor import QuantizedForm
from quire.quantization.rounding_schemes import RoundingScheme, create_scheme
from quire.settings.config import KEEP, ModelOptions

#: Models of fewer parameters have inputs of 16 bits unless told otherwise. Their two best tokens
#: are often so close that rounding to 8 bits changes which one wins: smollm2, of 135 million, then
#: answers the first question that people ask it with French that never ends.
SMALL_MODEL = 250_000_000


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """The plan that ``--quantization`` and ``--activations`` ask for.

    Attributes:
        layers: Scheme of the layers' linears; None keeps the checkpoint's weights.
        tables: Scheme of embedding and output head; None keeps the checkpoint's weights.
        exact_activations: Whether to multiply quantized weights with float32 activations.
        overrides: Patterns of modules' names with their own scheme, or None to keep the weights;
            the first that fits counts.
        own_activations: Whether to round activations in the engine's groups, whatever a checkpoint
            says.
        fine_activations: Whether to round activations to 16 bits, not 8, where no checkpoint says
            how: because the settings say so, or because the model is small.
    """

    layers: RoundingScheme | None = None
    tables: RoundingScheme | None = None
    exact_activations: bool = False
    overrides: tuple[tuple[str, RoundingScheme | None], ...] = ()
    own_activations: bool = False
    fine_activations: Literal["", "asked", "small model"] = ""

    def scheme_of(self, module: str, default: RoundingScheme | None) -> RoundingScheme | None:
        """Return how the matrix of a module is rounded; ``default`` where no override fits."""
        for pattern, scheme in self.overrides:
            if fnmatchcase(module, pattern):
                return scheme
        return default

    def forms(
        self, modules: Iterable[str], columns: int, default: RoundingScheme | None
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
        """A text of all settings that decide how weights are held."""
        inputs = f"{self.own_activations} {self.fine_activations}"
        return f"{self.layers} {self.tables} {self.overrides} {inputs}"


def refuse_quantized(name: str, form: QuantizedForm, scheme: RoundingScheme | None) -> None:
    """Refuse to round a matrix that is quantized.

    Raises:
        ConfigError: The matrix has a scheme.
    """
    if scheme is not None:
        raise ConfigError(
            f"[load] --quantization needs a checkpoint of floats; {name} has {form.bits} bits "
            "already. Leave the flag out."
        )


def create_plan(options: ModelOptions, model: ModelConfig | None = None) -> QuantizationPlan:
    """Return the plan of an engine's settings, for a model of that shape."""
    exact, size = options.activations == "fp32", options.quantization_group_size
    fine: Literal["", "asked", "small model"] = "asked" if options.activations == "int16" else ""
    if options.activations == "checkpoint" and model is not None and not model.is_encoder:
        fine = "small model" if model.num_parameters < SMALL_MODEL else ""
    overrides = tuple(
        (pattern, None if name == KEEP else create_scheme(name, size))
        for pattern, name in options.overrides()
    )
    if options.quantization is None:
        own = options.activations in ("int8", "int16")
        return QuantizationPlan(None, None, exact, overrides, own, fine)
    assert options.quantization in QUANTIZATIONS, options.quantization  # settled by then
    layers = create_scheme(options.quantization, size)
    tables = create_scheme("int8", size)
    return QuantizationPlan(layers, tables, exact, overrides, fine_activations=fine)
