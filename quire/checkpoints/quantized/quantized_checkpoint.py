"""A checkpoint folder whose matrices are quantized, as a loader wants it: one tensor a matrix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.expert_share import ExpertShare
from quire.checkpoints.formats.stored_matrix import (
    StoredMatrix,
    StoredPart,
    UnpackedMatrix,
    WeightFormat,
)
from quire.checkpoints.quantized.input_rounding import OWN
from quire.checkpoints.quantized.quantization_config import StoredQuantization
from quire.checkpoints.safetensors_file import TensorEntry
from quire.checkpoints.weight_names import WeightNames
from quire.core.errors import WeightMismatchError
from quire.core.model.model_config import ModelConfig
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedForm

#: Scales of activations and of the KV cache, such as ``self_attn.attn.k_scale``.
OF_ACTIVATIONS = re.compile(r".*\.(input_scale|input_zero_point|input_global_scale)")
OF_CACHE = re.compile(r".*\.self_attn\.(\w+\.)?(k|v|q|kv)_(scale|zero_point)")


@dataclass(frozen=True, slots=True)
class MatrixEntry:
    """A matrix of several tensors.

    Attributes:
        matrix, format: The matrix's parts, and their format.
        names: The checkpoint's names of the parts.
        shape: (N, K).
        nbytes: Bytes of all parts.
    """

    matrix: StoredMatrix
    format: WeightFormat
    names: tuple[str, ...]
    shape: tuple[int, ...]
    nbytes: int

    @property
    def form(self) -> QuantizedForm:
        """The form that it will be held in."""
        return self.format.form(self.matrix)


class QuantizedCheckpoint:
    """See :class:`quire.checkpoints.tensor_source.TensorSource`.

    Args:
        stored: The folder's tensors.
        quantization: The quantization that the folder's configuration states.

    Attributes:
        path: The folder.
        names: Names of all tensors, a matrix by its weight's.

    Raises:
        WeightMismatchError: The tensors are not those of the configuration.
    """

    #: Rows are as the family stores them.
    is_arranged = False
    #: Floats have the type of the configuration, or are rounded to it.
    mixes_types = False

    def __init__(self, stored: Checkpoint, quantization: StoredQuantization) -> None:
        self._stored, self.path = stored, stored.path
        self._quantization = quantization
        self._matrices: dict[str, MatrixEntry] = {}
        parts_of = _by_module(stored, quantization.formats)
        for module, parts in parts_of.items():
            self._add(module, parts)
        if not self._matrices:
            markers = " or ".join(sorted({form.marker for form in quantization.formats}))
            raise WeightMismatchError(
                f"[load] {stored.path}: config.json says {quantization.method}, so matrices must "
                f"have {markers}; got none that has. Check that config.json and weights belong "
                "together."
            )
        taken = {name for entry in self._matrices.values() for name in entry.names}
        used = {
            name
            for entry in self._matrices.values()
            if (rule := entry.form.activations) is not None and rule.scale
            for name in entry.names
        }
        of_activations = {name for name in stored.names if OF_ACTIVATIONS.fullmatch(name)}
        self._activation_scales = of_activations - used
        self._cache_scales = {name for name in stored.names if OF_CACHE.fullmatch(name)}
        plain = stored.names - taken - of_activations - self._cache_scales
        self.names = plain | set(self._matrices)

    def weight_names(self, config: ModelConfig, family: WeightNames) -> WeightNames:
        """Return what the tensors are called; quantized ones are stored (out, in) in all families.

        Matrices of floats among those of the layers keep the family's order for all.
        """
        names = self._stored.weight_names(config, family)
        layers = names.layer.partition("{layer}")[0]
        floats = (name for name in self.names - set(self._matrices) if name.startswith(layers))
        has_floats = any(len(self._stored.entry(name).shape) > 1 for name in floats)
        return replace(names, linear_is_transposed=names.linear_is_transposed and has_floats)

    def notices(self) -> list[str]:
        """Return how many matrices are quantized, and what of them has no use."""
        forms = Counter(str(entry.form) for entry in self._matrices.values())
        kinds = "; ".join(f"{number} in {form}" for form, number in forms.most_common())
        notices = [f"quantized by {self._quantization.method}: {kinds}"]
        notices += self._quantization.notices
        if self._activation_scales:
            count = len(self._activation_scales)
            notices.append(f"scales of activations are not used ({count}): {OWN}")
        if self._cache_scales:
            count = len(self._cache_scales)
            notices.append(f"scales of the KV cache are not used ({count}): it has its own")
        return notices

    def entry(self, name: str) -> TensorEntry | ExpertShare | MatrixEntry:
        """Return shape and size of a tensor."""
        found = self._matrices.get(name)
        return self._stored.entry(name) if found is None else found

    def tensor(self, name: str) -> HostTensor | UnpackedMatrix:
        """Return a view of a tensor of floats, or a matrix unpacked."""
        found = self._matrices.get(name)
        return self._stored.tensor(name) if found is None else found.format.unpack(found.matrix)

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        found = self._matrices.get(name)
        for part in (name,) if found is None else found.names:
            self._stored.release(part)

    def zero_biases(self, needed: Collection[str]) -> set[str]:
        """Return biases of matrices that the model does without, all of whose elements are 0.

        AutoGPTQ stores them for linears that have none.
        """
        biases = {f"{name.removesuffix('weight')}bias" for name in self._matrices}
        surplus = (self.names & biases) - set(needed)
        zeros = {name for name in surplus if not self._stored.array(name).any()}
        for name in surplus:
            self._stored.release(name)
        return zeros

    def _add(self, module: str, parts: dict[str, str]) -> None:
        form = self._quantization.format_of(module)
        markers = {known.marker for known in self._quantization.formats} & set(parts)
        if form is None or form.marker not in parts:
            if markers:
                raise WeightMismatchError(
                    f"[load] {module}: config.json says that it is "
                    f"{'not quantized' if form is None else f'stored with {form.marker}'}; got "
                    f"{', '.join(sorted(parts))}. Check that config.json and weights belong "
                    "together."
                )
            return
        found = {part: name for part, name in parts.items() if part in form.parts}
        entries = {part: self._stored.entry(name) for part, name in found.items()}
        matrix = StoredMatrix(
            module,
            {
                part: StoredPart(entry.dtype, entry.shape, partial(self._stored.array, name))
                for (part, name), entry in zip(found.items(), entries.values(), strict=True)
            },
        )
        self._matrices[f"{module}.weight"] = MatrixEntry(
            matrix,
            form,
            tuple(found.values()),
            form.shape(matrix),
            sum(entry.nbytes for entry in entries.values()),
        )


def _by_module(stored: Checkpoint, formats: tuple[WeightFormat, ...]) -> dict[str, dict[str, str]]:
    """Return the tensors that may be parts: by module, then by part."""
    known = sorted({part for form in formats for part in form.parts}, key=len, reverse=True)
    modules: dict[str, dict[str, str]] = {}
    for name in sorted(stored.names):
        part = next((part for part in known if name.endswith(f".{part}")), None)
        if part is not None:
            modules.setdefault(name.removesuffix(f".{part}"), {})[part] = name
    return modules
