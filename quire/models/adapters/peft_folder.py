"""A PEFT folder: ``adapter_config.json`` and ``adapter_model.safetensors``, checked and mapped.

LoRA, rsLoRA and DoRA are read, trained biases, and matrices that are saved whole. Pickled files are
never opened. E experts, R rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from quire.checkpoints.embedded import ASSETS, EMBEDDED
from quire.checkpoints.safetensors_file import DTYPES, SafetensorsFile
from quire.core.adapter_reference import AdapterReference
from quire.core.errors import ModelLoadError
from quire.kernels.matrices.host_tensor import HostTensor
from quire.models.adapters.peft_settings import CONFIG, PeftSettings, read_settings, unreadable
from quire.system.regular_files import open_regular

#: Those of quire-tiny that are in the package.
EMBEDDED_ADAPTERS = {
    f"{EMBEDDED}-{name}": ASSETS / f"{EMBEDDED}-adapters" / name
    for name in ("sql", "code", "pirate")
}
WEIGHTS = "adapter_model.safetensors"
_TENSOR = re.compile(
    r"base_model\.model\.(.+)\.lora_(?:embedding_)?([AB]|magnitude_vector)"
    r"(?:\.default)?(?:\.weight)?"
)
_BIAS = re.compile(r"base_model\.model\.(.+?)(?:\.base_layer)?\.bias")
_WHOLE = re.compile(r"base_model\.model\.(.+?)(?:\.modules_to_save)?(?:\.default)?\.weight")
#: What PEFT puts between a module and its parameters, once for each that it was given before.
_WRAPPERS = re.compile(r"(\.base_layer)*$")


@dataclass(frozen=True, slots=True)
class AdapterMatrices:
    """An adapter's addition to one matrix: ``scale * up @ down``.

    Attributes:
        down: (R, inputs); of an embedding (R, vocabulary).
        up: (outputs, R); of an embedding (model dim, R).
        scale: ``alpha / R``, or ``alpha / sqrt(R)`` of rsLoRA.
        magnitudes: (outputs,), to which DoRA scales the rows of the sum, or None.
    """

    down: HostTensor
    up: HostTensor
    scale: float
    magnitudes: HostTensor | None = None


@dataclass(frozen=True, slots=True)
class StackedMatrices:
    """An adapter's addition to a parameter that holds a matrix of all experts.

    Attributes:
        down: (E R, inputs), an expert's rows together.
        up: (outputs, R E), an expert's columns E apart.
    """

    down: HostTensor
    up: HostTensor

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs of an expert."""
        return self.down.shape[1], self.up.shape[0]


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """An adapter whose matrices are views of a mapped file.

    Attributes:
        settings: Settings of its folder.
        matrices: Matrices by PEFT's name of the module, without ``base_model.model.``.
        stacked: Matrices of a module's parameters, by the same names; shapes tell which is which.
        biases: (outputs,) biases in place of the model's, by the same names.
        whole: (vocabulary, model dim) matrices in place of the model's, by the same names.
    """

    settings: PeftSettings
    matrices: dict[str, AdapterMatrices]
    stacked: dict[str, list[StackedMatrices]] = field(default_factory=dict)
    biases: dict[str, HostTensor] = field(default_factory=dict)
    whole: dict[str, HostTensor] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The adapter's folder."""
        return self.settings.path

    @property
    def whole_bytes(self) -> int:
        """Bytes of the matrices in place of the model's."""
        return sum(tensor.array.nbytes for tensor in self.whole.values())


def read_adapter(folder: str | Path) -> PeftAdapter:
    """Read a folder's settings and map its matrices.

    Raises:
        ModelLoadError: A file is missing or damaged, or holds what is not done; the message says
            what.
    """
    path = adapter_folder(folder)
    settings = read_settings(path)
    if not (path / WEIGHTS).is_file():
        pickled = (path / "adapter_model.bin").is_file()
        raise ModelLoadError(
            f"[adapter] {path} must hold {WEIGHTS}; got "
            + (
                "adapter_model.bin, a pickled file, which may run code when it is opened. Save the "
                "adapter again with safe_serialization=True."
                if pickled
                else "no such file. Give the folder that PEFT's save_pretrained wrote."
            )
        )
    file = SafetensorsFile(path / WEIGHTS)
    halves: dict[str, dict[str, HostTensor]] = {}
    made = PeftAdapter(settings, {})
    for name in file.entries:
        if (found := _TENSOR.fullmatch(name)) is not None:
            half = found[2]
            num_axes = 1 if half == "magnitude_vector" else 2
            halves.setdefault(found[1], {})[half] = _tensor(path, file, name, num_axes)
        elif settings.has_biases and (found := _BIAS.fullmatch(name)) is not None:
            made.biases[found[1]] = _tensor(path, file, name, 1)
        elif (found := _WHOLE.fullmatch(name)) is not None and settings.saves(found[1]):
            made.whole[found[1]] = _tensor(path, file, name, 2)
        else:
            raise ModelLoadError(
                f"[adapter] {path}: tensors must be lora_A and lora_B of linears, or what bias and "
                f"modules_to_save in {CONFIG} name; got {name:.120}. "
                + (
                    "Save the adapter again with save_embedding_layers=False."
                    if name.endswith(".base_layer.weight")
                    else "Merge the adapter into its model with PEFT, and serve that."
                )
            )
    if not halves and not made.whole:
        raise ModelLoadError(f"[adapter] {path}: {WEIGHTS} must hold matrices; got none.")
    for name, pair in halves.items():
        down, up = _pair(path, name, pair)
        module = _WRAPPERS.sub("", name)
        if settings.has_parameters and _is_stacked(settings, module, down):
            made.stacked.setdefault(module, []).append(StackedMatrices(down, up))
        else:
            made.matrices[name] = _join(settings, name, down, up, pair.get("magnitude_vector"))
    return made


def _is_stacked(settings: PeftSettings, module: str, down: HostTensor) -> bool:
    """Return whether matrices are of all experts of a layer, whose number is not known here."""
    stated = settings.rank(module, f"{module}.weight")
    return module.endswith(".experts") or down.shape[0] != stated


def _tensor(path: Path, file: SafetensorsFile, name: str, num_axes: int) -> HostTensor:
    entry = file.entries[name]
    if entry.dtype not in DTYPES or len(entry.shape) != num_axes or 0 in entry.shape:
        kind = "matrix" if num_axes == 2 else "vector"
        raise ModelLoadError(
            f"[adapter] {path}: {name:.120} must be a {kind} of {', '.join(DTYPES)}; got "
            f"{entry.dtype} {entry.shape}."
        )
    return file.tensor(name)


def adapter_folder(folder: str | Path) -> Path:
    """Return the absolute path of a folder by its name, or of an embedded adapter.

    Raises:
        ModelLoadError: The text cannot be a folder's name.
    """
    if str(folder) in EMBEDDED_ADAPTERS:
        return EMBEDDED_ADAPTERS[str(folder)]
    try:
        path = Path(folder).expanduser().absolute()
        path.lstat()
    except OSError:  # told when its files are opened
        pass
    except (RuntimeError, ValueError) as error:  # an unknown user, a NUL
        raise ModelLoadError(
            f"[adapter] {str(folder)!r:.120} must be readable; got {error}. Give the folder that "
            "PEFT's save_pretrained wrote."
        ) from None
    return path


def describe_adapter(name: str, adapter: PeftAdapter, extra_bytes: int) -> AdapterReference:
    """Return the reference that requests have for an adapter; its files are read, for their hash.

    Args:
        name: The name that requests have for it.
        adapter: The adapter, which was checked against its model.
        extra_bytes: Bytes that :func:`~quire.models.adapters.matching.check_adapter` returned.

    Raises:
        ModelLoadError: A file cannot be read.
    """
    path = str(adapter.path)
    return AdapterReference(name, path, hash_adapter(path), extra_bytes)


def hash_adapter(folder: str | Path) -> str:
    """Return the hash of an adapter's files, in hex.

    Raises:
        ModelLoadError: One cannot be read.
    """
    state = blake2b(digest_size=32)
    for name in (CONFIG, WEIGHTS):
        path = Path(folder) / name
        try:
            with open_regular(path) as file:
                state.update(path.stat().st_size.to_bytes(8, "little"))
                while part := file.read(1 << 20):
                    state.update(part)
        except OSError as error:
            raise unreadable(path, error) from None
    return state.hexdigest()


def _pair(path: Path, name: str, halves: dict[str, HostTensor]) -> tuple[HostTensor, HostTensor]:
    """Return the two matrices of a module, of one type."""
    down, up = halves.get("A"), halves.get("B")
    if down is None or up is None or down.shape[0] != up.shape[1]:
        got = {half: tensor.shape for half, tensor in sorted(halves.items())}
        raise ModelLoadError(
            f"[adapter] {path}: {name:.120} must have lora_A (R, inputs) and lora_B (outputs, R); "
            f"got {got}."
        )
    if down.dtype != up.dtype:
        down, up = (HostTensor(half.name, "float32", half.float32()) for half in (down, up))
    return down, up


def _join(
    settings: PeftSettings,
    name: str,
    down: HostTensor,
    up: HostTensor,
    magnitudes: HostTensor | None,
) -> AdapterMatrices:
    """Return what is added to a module's matrix."""
    path, rank, names = settings.path, down.shape[0], (name, f"{name}.weight")
    stated = settings.rank(*names)
    if stated != rank:
        raise ModelLoadError(
            f"[adapter] {path}: {name:.120} must have the rank of {CONFIG}, {stated:g}; got {rank}."
        )
    is_whole = magnitudes is None or magnitudes.shape == (up.shape[0],)
    if (magnitudes is None) is settings.is_dora or not is_whole:
        shape = None if magnitudes is None else magnitudes.shape
        raise ModelLoadError(
            f"[adapter] {path}: {name:.120} must have magnitudes ({up.shape[0]},) with use_dora, "
            f"and none without; got {shape}."
        )
    return AdapterMatrices(down, up, settings.scale(rank, *names), magnitudes)
