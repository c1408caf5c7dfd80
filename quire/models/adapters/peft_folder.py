"""A PEFT folder: ``adapter_config.json`` and ``adapter_model.safetensors``, checked and mapped.

LoRA, rsLoRA and DoRA are read, trained biases, and matrices that are saved whole. What would give
other answers when it is left out is refused by name; pickled files are never opened. R rank.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from quire.core.adapters import AdapterReference
from quire.core.errors import ModelLoadError
from quire.kernels.host_tensor import HostTensor
from quire.models.hub import ASSETS, EMBEDDED
from quire.models.safetensors_file import DTYPES, SafetensorsFile

#: Those of quire-tiny that are in the package.
EMBEDDED_ADAPTERS = {
    f"{EMBEDDED}-{name}": ASSETS / f"{EMBEDDED}-adapters" / name
    for name in ("sql", "code", "pirate")
}
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20
_TENSOR = re.compile(
    r"base_model\.model\.(.+)\.lora_(?:embedding_)?([AB]|magnitude_vector)"
    r"(?:\.default)?(?:\.weight)?"
)
_BIAS = re.compile(r"base_model\.model\.(.+?)(?:\.base_layer)?\.bias")
_WHOLE = re.compile(r"base_model\.model\.(.+?)(?:\.modules_to_save)?(?:\.default)?\.weight")
#: A key of ``rank_pattern`` or ``alpha_pattern``: PEFT takes any regular expression.
_PATTERN = re.compile(r"\^?[\w.]+")
#: Options that change what is computed, and what asks for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "lora_bias": (False, None),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "layer_replication": (None, []),
    "ensure_weight_tying": (False, None),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "arrow_config": (None,),
    "kappa_tune_config": (None,),
    "monteclora_config": (None,),
}
#: Ways to begin a training that change the base's own matrices.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class AdapterMatrices:
    """What an adapter adds to one matrix: ``scale * up @ down``.

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
class PeftAdapter:
    """An adapter whose matrices are views of a mapped file.

    Attributes:
        path: Its folder.
        matrices: By the name of the module, as PEFT has it without ``base_model.model.``.
        biases: By the same names, (outputs,), in place of the model's.
        whole: By the same names, (vocabulary, model dim), in place of the model's.
    """

    path: Path
    matrices: dict[str, AdapterMatrices]
    biases: dict[str, HostTensor] = field(default_factory=dict)
    whole: dict[str, HostTensor] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The largest of its matrices'; 0 without any."""
        return max((part.down.shape[0] for part in self.matrices.values()), default=0)

    @property
    def whole_bytes(self) -> int:
        """Of matrices in place of the model's."""
        return sum(tensor.array.nbytes for tensor in self.whole.values())

    @property
    def nbytes(self) -> int:
        """Of all tensors as they are stored."""
        halves = [half for part in self.matrices.values() for half in (part.down, part.up)]
        vectors = [part.magnitudes for part in self.matrices.values() if part.magnitudes]
        others = (*halves, *vectors, *self.biases.values())
        return self.whole_bytes + sum(tensor.array.nbytes for tensor in others)


def read_adapter(folder: str | Path) -> PeftAdapter:
    """Read a folder's settings and map its matrices.

    Raises:
        ModelLoadError: A file is missing or damaged, or holds what is not done; the message says
            what.
    """
    path = adapter_folder(folder)
    config = _read_config(path)
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
    biases, whole = dict[str, HostTensor](), dict[str, HostTensor]()
    for name in file.entries:
        if (found := _TENSOR.fullmatch(name)) is not None:
            half = found[2]
            num_axes = 1 if half == "magnitude_vector" else 2
            halves.setdefault(found[1], {})[half] = _tensor(path, file, name, num_axes)
        elif config.get("bias", "none") != "none" and (found := _BIAS.fullmatch(name)) is not None:
            biases[found[1]] = _tensor(path, file, name, 1)
        elif (found := _WHOLE.fullmatch(name)) is not None and _is_saved(config, found[1]):
            whole[found[1]] = _tensor(path, file, name, 2)
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
    if not halves and not whole:
        raise ModelLoadError(f"[adapter] {path}: {WEIGHTS} must hold matrices; got none.")
    matrices = {name: _join(path, name, pair, config) for name, pair in halves.items()}
    return PeftAdapter(path, matrices, biases, whole)


def _is_saved(config: dict[str, Any], module: str) -> bool:
    return module.rpartition(".")[2] in (config.get("modules_to_save") or ())


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
    """Return the absolute path of a folder that somebody names, or of an embedded adapter.

    Raises:
        ModelLoadError: It cannot be one's name.
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


def describe_adapter(name: str, folder: str | Path) -> AdapterReference:
    """Read and check a folder, and return what stands for it in requests.

    It reads all of the files, for their hash.

    Raises:
        ModelLoadError: As of :func:`read_adapter`.
    """
    adapter = read_adapter(folder)
    path = str(adapter.path)
    hashed = hash_adapter(path)
    return AdapterReference(name, path, hashed, adapter.rank, adapter.nbytes, adapter.whole_bytes)


def hash_adapter(folder: str | Path) -> str:
    """Return the hash of an adapter's files, in hex.

    Raises:
        ModelLoadError: One cannot be read.
    """
    state = blake2b(digest_size=32)
    for name in (CONFIG, WEIGHTS):
        path = Path(folder) / name
        try:
            with path.open("rb") as file:
                state.update(path.stat().st_size.to_bytes(8, "little"))
                while part := file.read(1 << 20):
                    state.update(part)
        except OSError as error:
            raise _unreadable(path, error) from None
    return state.hexdigest()


def _read_config(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise _unreadable(file, error) from None
    try:
        config = json.loads(text) if len(text) <= MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ModelLoadError(
            f"[adapter] {file} must be a JSON object of at most {MAX_CONFIG_BYTES} bytes; got "
            "something else."
        )
    if config.get("peft_type") != "LORA":
        raise _refused(path, "peft_type", "LORA", config.get("peft_type"))
    for name, neutral in _NEUTRAL.items():
        if config.get(name, neutral[0]) not in neutral:
            raise _refused(path, name, json.dumps(neutral[0]), config[name])
    if config.get("bias", "none") not in ("none", "all", "lora_only"):
        raise _refused(path, "bias", "none, all or lora_only", config["bias"])
    if config.get("use_dora") not in (True, False, None):
        raise _refused(path, "use_dora", "true or false", config["use_dora"])
    saved = config.get("modules_to_save")
    if saved is not None and not (
        isinstance(saved, list) and all(isinstance(name, str) for name in saved)
    ):
        raise _refused(path, "modules_to_save", "a list of names", saved)
    initial = config.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_CHANGES_BASE):
        raise _refused(path, "init_lora_weights", "of a kind that keeps the base", initial)
    return config


def _join(
    path: Path, name: str, halves: dict[str, HostTensor], config: dict[str, Any]
) -> AdapterMatrices:
    """Return the two matrices of a module, of one type, and its magnitudes."""
    down, up, magnitudes = halves.get("A"), halves.get("B"), halves.get("magnitude_vector")
    if down is None or up is None or down.shape[0] != up.shape[1]:
        got = {half: tensor.shape for half, tensor in sorted(halves.items())}
        raise ModelLoadError(
            f"[adapter] {path}: {name:.120} must have lora_A (R, inputs) and lora_B (outputs, R); "
            f"got {got}."
        )
    if down.dtype != up.dtype:
        down, up = (HostTensor(half.name, "float32", half.float32()) for half in (down, up))
    rank = down.shape[0]
    stated = _setting(path, config, "r", "rank_pattern", name)
    if stated != rank:
        raise ModelLoadError(
            f"[adapter] {path}: {name:.120} must have the rank of {CONFIG}, {stated:g}; got {rank}."
        )
    alpha = _setting(path, config, "lora_alpha", "alpha_pattern", name)
    is_whole = magnitudes is None or magnitudes.shape == (up.shape[0],)
    if (magnitudes is None) is (config.get("use_dora") is True) or not is_whole:
        shape = None if magnitudes is None else magnitudes.shape
        raise ModelLoadError(
            f"[adapter] {path}: {name:.120} must have magnitudes ({up.shape[0]},) with use_dora, "
            f"and none without; got {shape}."
        )
    scale = alpha / (math.sqrt(rank) if _is_rs(config) else rank)
    return AdapterMatrices(down, up, scale, magnitudes)


def _is_rs(config: dict[str, Any]) -> bool:
    return config.get("use_rslora") is True


def _setting(path: Path, config: dict[str, Any], key: str, patterns: str, module: str) -> float:
    """Return a number of a module: its own one, else that of all."""
    value, own = config.get(key), config.get(patterns) or {}
    if not isinstance(own, dict):
        raise _refused(path, patterns, "an object", own)
    for pattern, number in own.items():
        if not _PATTERN.fullmatch(pattern):
            raise _refused(path, patterns, "of names of modules, without other signs", pattern)
        whole = pattern.removeprefix("^")
        if module == whole or (whole == pattern and module.endswith(f".{pattern}")):
            value = number
            break
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _refused(path, key, "a number above 0", value)
    return float(value)


def _refused(path: Path, name: str, rule: str, got: Any) -> ModelLoadError:
    return ModelLoadError(
        f"[adapter] {path}: {name} must be {rule}; got {str(got):.80}. Other kinds are not served: "
        "merge the adapter into its model with PEFT, and serve that."
    )


def _unreadable(path: Path, error: OSError) -> ModelLoadError:
    return ModelLoadError(
        f"[adapter] {path} must be readable; got {error.strerror}. Give the folder that PEFT's "
        "save_pretrained wrote."
    )
