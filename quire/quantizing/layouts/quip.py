"""QuIP-for-all's format: matrices are stored one by one, with what rotates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.checkpoints.formats.quip import CODE_BOOKS, DTYPES, RESIDUAL_SCALE, store_quip
from quire.core.errors import ConfigError
from quire.core.plurals import counted
from quire.kernels.matrices.lattice_codes import SIZE
from quire.kernels.matrices.lattice_matrix import MAX_BASE, LatticeMatrix
from quire.kernels.matrices.rotation import odd_part
from quire.quantizing.layouts.stored_layout import Fitting, Schemes, Shapes, StoredFormat
from quire.quantizing.scheme import QuantizationScheme

#: Experts of a mixture are computed as one job, which knows no rotations.
EXPERTS = ".experts."


class QuipLayout(StoredFormat):
    """Lattice codes, rotated."""

    name = "quip"

    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Leave out what does not fill vectors, takes too long to rotate, or is an expert's."""
        others = {module: s for module, s in schemes.items() if EXPERTS not in module}
        fitting.keep(others, shapes, _refusal)
        if left_out := len(schemes) - len(others):
            fitting.notices.append(
                f"{counted(left_out, 'matrix', 'matrices')} left as floats, since experts are not "
                "computed rotated"
            )

    def _arrays(self, matrix: LatticeMatrix, scheme: QuantizationScheme) -> dict[str, np.ndarray]:
        return store_quip(matrix)

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return the settings that all matrices share."""
        bits = sorted({scheme.bits for scheme in schemes.values()})
        if len(bits) > 1:
            raise ConfigError(
                f"[quantize] --format {self.name} stores all matrices with one code book; got a "
                f"recipe of {' and '.join(map(str, bits))} bits. Give one --bits."
            )
        return {
            "quant_method": "quip",
            "codebook": CODE_BOOKS[bits[0]],
            "codesz": SIZE,
            "idx_dtype": {"I16": "torch.int16", "I32": "torch.int32"}[DTYPES[bits[0]]],
            "use_rand": True,
            "rescale_WH": False,
            "merge_suv": False,
            "per_channel": False,
            "opt_resid_scale": RESIDUAL_SCALE,
            "modules_to_not_convert": [*floats, "lm_head"],
        }


def _refusal(_: QuantizationScheme, shape: tuple[int, int]) -> str:
    if shape[1] % SIZE:
        return f"packs rows in multiples of {SIZE}"
    if max(map(odd_part, shape)) > MAX_BASE:
        return f"rotates sizes that are a power of two times at most {MAX_BASE}"
    return ""
