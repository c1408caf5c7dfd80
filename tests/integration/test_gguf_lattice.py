"""Every tensor type of GGUF files: the equality lattice, and closeness to the dequantized model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.equality import check_lattice
from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.kernels.registry import create_backend
from quire.quantization.quantization_plan import QuantizationPlan
from tests.integration.conftest import lattice
from tests.models.conftest import Driver
from tests.sizes import sized
from tools.random_gguf import random_gguf

#: A type of each kind of block.
KINDS = "F16 Q5_1 Q8_0 Q4_K Q6_K IQ4_NL IQ2_XS IQ3_S IQ1_M TQ1_0 MXFP4".split()


@pytest.fixture(scope="module", params=LAYOUTS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model all of whose matrices have one type."""
    path: Path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    random_gguf(path, request.param)
    return path


@pytest.mark.parametrize("path", sized(KINDS, [*LAYOUTS]), indirect=True)
def test_the_lattice(path: Path, device: str) -> None:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    outcomes = check_lattice(path, lattice([*LAYOUTS].index(path.stem)), device=device)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


def test_logits_are_the_dequantized_models(path: Path) -> None:
    """Exact activations: float32's error. Rounded ones: at most half a step of 127 each.

    An activation's rounding error is uniform within half of max / 127 of its group, about 0.5% of
    the group's deviation; products add it up independently, and so do the two layers.
    """
    pytest.importorskip("torch")
    prompt = [np.arange(24) * 7 % 250]

    def logits(device: str, exact: bool) -> np.ndarray:
        backend = create_backend(device, threads=1)
        plan = QuantizationPlan(exact_activations=exact and LAYOUTS[path.stem].is_quantized)
        return Driver(path, backend, dtype="float32", plan=plan).step(prompt)

    want = logits("reference", True)
    size = np.sqrt(np.mean(want**2))
    assert np.abs(logits("cpu", True) - want).max() <= 2e-4 * size
    rounded = logits("cpu", False)
    assert np.sqrt(np.mean((rounded - want) ** 2)) <= 0.03 * size
    if not LAYOUTS[path.stem].is_quantized:
        return
    # Tokens differ only where the two best were closer than the error.
    best, ours = want.argmax(axis=-1), rounded.argmax(axis=-1)
    rows = np.arange(len(want))
    assert (want[rows, best] - want[rows, ours] <= 0.15 * size).all()
