"""Forms that a decoder's matrices are held in, counted while they are packed and then reported."""

from __future__ import annotations

import logging
import re
from collections import Counter

from quire.core.errors import ConfigError
from quire.kernels.matrices.quantized_tensor import QuantizedForm
from quire.quantization.quantization_plan import SMALL_MODEL, QuantizationPlan

log = logging.getLogger(__name__)


class MatrixForms:
    """Forms of matrices, and names of those that stay floats.

    Args:
        plan: The plan that was asked for.
    """

    def __init__(self, plan: QuantizationPlan) -> None:
        self._plan = plan
        self._quantized: Counter[QuantizedForm] = Counter()
        self._kept: list[str] = []

    def count(self, name: str, form: QuantizedForm | None) -> None:
        """Count a tensor; ``form`` is None for floats."""
        if form is None:
            self._kept.append(name)
        else:
            self._quantized[form.kind] += 1

    @property
    def are_fine_by_size(self) -> bool:
        """Whether inputs of quantized matrices are int16 only because the model is small."""
        return bool(self._quantized) and self._plan.fine_activations == "small model"

    def report(self) -> None:
        """Log which matrices are quantized, in which forms, and which are not.

        Raises:
            ConfigError: Exact activations were asked for and nothing is quantized.
        """
        if not self._quantized:
            if self._plan.exact_activations:
                raise ConfigError(
                    "[load] --activations fp32 needs quantized weights; got none. Add "
                    "--quantization, or leave it out."
                )
            return
        if self.are_fine_by_size:
            log.info(
                "activations = int16, not int8: rounding to 8 bits changes answers of models with "
                "fewer than %d million parameters; --activations int8 is faster",
                SMALL_MODEL // 10**6,
            )
        kept = ", ".join(sorted({re.sub(r"\.\d+\.", ".*.", name) for name in self._kept}))
        log.info(
            "%s quantized; kept in higher precision: %s",
            _matrices_are(self._quantized.total()),
            kept,
        )
        # Stored scales of inputs make forms of matrices differ that read the same.
        kinds: Counter[str] = Counter()
        for form, count in self._quantized.items():
            kinds[str(form)] += count
        for kind, count in kinds.most_common():
            log.info("%s held in %s", _matrices_are(count), kind)
        fewest = min(form.bits for form in self._quantized)
        if self._plan.layers is not None and fewest < 4:
            log.warning(
                "weights of %d bits lose much of a model's quality: docs/models.md has figures",
                fewest,
            )


def _matrices_are(count: int) -> str:
    return "1 matrix is" if count == 1 else f"{count} matrices are"
