"""``AutoModelForCausalLM``: a checkpoint by its name, quantized first where that is asked."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from quire.checkpoints.config_fields import read_json
from quire.core.errors import ConfigError
from quire.pretrained.foreign_options import (
    GPUS,
    KERNELS,
    ForeignOption,
    done,
    idle,
    read_options,
    refused,
)
from quire.pretrained.pretrained_model import PretrainedModel
from quire.pretrained.quantization_configs import QuantizationConfig
from quire.pretrained.quantized_folder import TemporaryFolder, quantized_folder
from quire.pretrained.types import dtype_name
from quire.settings.engine_keywords import keyword_names
from quire.store.hub import resolve_model
from quire.system.log import get_logger

log = get_logger(__name__)

_MEMORY = "is said by memory, in bytes or as '8GiB'"
_HUB = "is not done: HF_HOME and HF_TOKEN say where models are and who asks"
#: Of transformers' ``from_pretrained``; settings of an engine are taken, too.
OPTIONS: dict[str, ForeignOption] = {
    "quantization_config": done(),
    "dtype": done("auto"),
    "torch_dtype": done(),
    "device_map": done(),
    "revision": done(),
    "trust_remote_code": idle("code of a checkpoint is never run", False),
    "low_cpu_mem_usage": idle("weights are read one by one"),
    "use_safetensors": refused("must be True: pickles are not read", None, True),
    "use_cache": idle("the KV cache is always there", True),
    "attn_implementation": idle("there is one way to compute attention on each machine"),
    "local_files_only": refused(_HUB, None, False),
    "cache_dir": refused(_HUB),
    "token": refused(_HUB),
    "force_download": refused(_HUB, None, False),
    "subfolder": refused("is not done: name the folder itself", None, ""),
    "max_memory": refused(_MEMORY),
    "offload_folder": refused("is not done: weights stay in memory"),
    "offload_state_dict": refused("is not done: weights stay in memory", None, False),
    "config": refused("must be the checkpoint's own"),
    "state_dict": refused("must be the checkpoint's own"),
    "variant": refused("is not done: name a folder that has the files"),
    "tp_plan": refused(GPUS),
    "tp_size": refused(GPUS, None, 1),
    "device_mesh": refused(GPUS),
    "kernel_config": refused(f"is not done: {KERNELS}"),
}
ENGINE = {name: done() for name in keyword_names() if name not in OPTIONS}
#: Maps that put a whole model where there is room.
WHEREVER = (None, "auto", "balanced", "balanced_low_0", "sequential")


class AutoModelForCausalLM:
    """Loads models; it has no objects of its own.

    Raises:
        ConfigError: Every call is refused.
    """

    def __init__(self) -> NoReturn:
        raise ConfigError("[AutoModelForCausalLM] a model is made by from_pretrained; got a call.")

    @classmethod
    def from_pretrained(cls, name: str | PathLike[str], **options: Any) -> PretrainedModel:
        """Load a model.

        Args:
            name: Folder, GGUF file, hub id or ``quire-tiny``.
            **options: Options of :data:`OPTIONS`, and settings of an engine, as in
                :class:`quire.LLM`. With ``quantization_config`` a checkpoint of floats is quantized
                first, into a temporary folder that :meth:`PretrainedModel.close` removes.

        Raises:
            ConfigError: An option is unknown, or asks for what is not done.
            ModelLoadError: The checkpoint cannot be read.
        """
        given = read_options("from_pretrained", OPTIONS | ENGINE, options)
        keywords = engine_keywords("from_pretrained", options)
        folder = resolve_model(str(name), given["revision"])
        config, made = given["quantization_config"], None
        if config is not None:
            made = _quantized("from_pretrained", folder, config, keywords.get("threads"))
        return PretrainedModel(folder if made is None else made.path, keywords, made)


def engine_keywords(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an engine among options.

    Args:
        where: The function, for messages.
        options: Options of :data:`OPTIONS` and :data:`ENGINE`.

    Raises:
        ConfigError: An element type or a device does not exist here.
    """
    keywords = {name: value for name, value in options.items() if name in ENGINE}
    for name in ("torch_dtype", "dtype"):
        value = options.get(name)
        if value is not None and value != "auto":
            keywords["dtype"] = dtype_name(where, name, value)
    place = options.get("device_map")
    if isinstance(place, Mapping):
        if set(place) != {""}:
            raise ConfigError(
                f"[{where}] device_map must put the whole model in one place; got {place!r:.80}. "
                'Give "auto".'
            )
        place = place[""]
    if place not in WHEREVER:
        if str(place).split(":")[0] != "cpu":
            raise ConfigError(f"[{where}] device_map must be auto or cpu; got {place!r:.40}.")
        keywords["device"] = "cpu"
    return keywords


def _quantized(
    where: str, folder: Path, config: QuantizationConfig, threads: int | None
) -> TemporaryFolder | None:
    """Return what was made of a checkpoint; None where it is quantized already."""
    stored = {} if folder.is_file() else read_json(folder / "config.json")
    own = stored.get("quantization_config")
    if own is None:
        command = f"AutoModelForCausalLM.from_pretrained(..., quantization_config={config!r:.2000})"
        return quantized_folder(where, folder, config.asked(), command, threads)
    if own.get("quant_method") != config.quant_method:
        raise ConfigError(
            f"[{where}] quantization_config must be of the checkpoint's method "
            f"{own.get('quant_method')}; got {config.quant_method}. Leave it out."
        )
    log.warning("[%s] the checkpoint is quantized already, as its own settings say", where)
    return None
