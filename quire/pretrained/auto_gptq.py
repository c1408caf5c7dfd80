"""``AutoGPTQForCausalLM``: GPTQ with the calls and options of AutoGPTQ 0.8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from quire.core.errors import ConfigError
from quire.pretrained.auto_model import ENGINE, engine_keywords
from quire.pretrained.foreign_options import (
    GPUS,
    KERNELS,
    ForeignOption,
    done,
    idle,
    read_options,
    refused,
)
from quire.pretrained.quantizable import QuantizableModel, floats_folder, quantized_source
from quire.pretrained.quantization_configs import QuantizationRequest
from quire.pretrained.quantized_folder import tokens_of
from quire.quantizing.scheme import create_scheme
from quire.store.hub import resolve_model

_LOAD: dict[str, ForeignOption] = {
    "dtype": done("auto"),
    "max_memory": refused(GPUS),
    "trust_remote_code": idle("code of a checkpoint is never run", False),
    "torch_dtype": done(),
    "device_map": done(),
}
LOAD_FLOATS: dict[str, ForeignOption] = _LOAD | {
    "low_cpu_mem_usage": idle("weights are read one by one"),
}
LOAD_QUANTIZED: dict[str, ForeignOption] = _LOAD | {
    "device": done(),
    "low_cpu_mem_usage": idle("weights are read one by one", False),
    "use_triton": idle(KERNELS, False),
    "use_qigen": idle(KERNELS, False),
    "use_marlin": idle(KERNELS, False),
    "use_tritonv2": idle(KERNELS, False),
    "inject_fused_attention": idle(KERNELS, False),
    "inject_fused_mlp": idle(KERNELS, False),
    "use_cuda_fp16": idle(KERNELS, True),
    "warmup_triton": idle(KERNELS, False),
    "disable_exllama": idle(KERNELS),
    "disable_exllamav2": idle(KERNELS, False),
    "quantize_config": refused("must be the checkpoint's own"),
    "checkpoint_format": refused("must be the checkpoint's own"),
    "model_basename": refused("is not done: config.json and the index say which files"),
    "use_safetensors": refused("must be True: pickles are not read", True),
    "trainable": refused("must be False: weights are not trained", False),
}
QUANTIZE: dict[str, ForeignOption] = {
    "batch_size": idle("samples are computed without padding", 1),
    "use_triton": idle(KERNELS, False),
    "use_cuda_fp16": idle(KERNELS, True),
    "autotune_warmup_after_quantized": idle(KERNELS, False),
    "cache_examples_on_gpu": idle("samples are in memory", True),
}
SAVE: dict[str, ForeignOption] = {
    "use_safetensors": refused("must be True: pickles are not written", True),
    "safetensors_metadata": refused("is not done: the card says what was done"),
}


@dataclass
class BaseQuantizeConfig:
    """Settings of GPTQ.

    Args:
        bits: 2, 3, 4 or 8.
        group_size: Inputs that share a scale; -1 for all of a row.
        damp_percent: Share of the inputs' mean square that is added.
        desc_act: Whether inputs are taken by their size, the largest first.
        static_groups: False, the only value.
        sym: Whether groups have no zeros.
        true_sequential: Whether a matrix is calibrated after those before it in its layer.
        quant_method: ``gptq``.
        checkpoint_format: ``gptq``; for ``sym=False`` it must be ``gptq_v2``.
        model_name_or_path, model_file_base_name: Names that change nothing.

    Raises:
        ConfigError: An option asks for what is not done.
    """

    bits: int = 4
    group_size: int = -1
    damp_percent: float = 0.01
    desc_act: bool = True
    static_groups: bool = False
    sym: bool = True
    true_sequential: bool = True
    quant_method: str = "gptq"
    checkpoint_format: str = "gptq"
    model_name_or_path: str | None = None
    model_file_base_name: str | None = None

    OPTIONS: ClassVar[Mapping[str, ForeignOption]] = {
        "static_groups": refused("must be False: groups are fitted as columns come", False),
        "quant_method": refused("must be gptq", "gptq"),
        "model_name_or_path": idle("the checkpoint is named when it is opened"),
        "model_file_base_name": idle("files are named as config.json wants it"),
    }

    def __post_init__(self) -> None:
        for name, option in self.OPTIONS.items():
            option.read("BaseQuantizeConfig", name, getattr(self, name))
        wanted = "gptq" if self.sym else "gptq_v2"
        if self.checkpoint_format != wanted:
            raise ConfigError(
                f"[BaseQuantizeConfig] checkpoint_format must be {wanted} for sym={self.sym}; got "
                f"{self.checkpoint_format}."
            )
        self.asked()

    def asked(self, examples: Sequence[Sequence[int]] | None = None) -> QuantizationRequest:
        """Return what the settings come to with samples of token ids."""
        settings = {
            "bits": self.bits,
            "group_size": self.group_size,
            "symmetric": self.sym,
            "act_order": self.desc_act,
            "true_sequential": self.true_sequential,
            "damping": self.damp_percent,
        }
        scheme = create_scheme("gptq", settings)
        return QuantizationRequest(scheme=scheme, format="gptq", examples=examples)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)


class GPTQModel(QuantizableModel):
    """A model of :class:`AutoGPTQForCausalLM`.

    Args:
        folder: The checkpoint.
        keywords: Settings of the engine.
        quantize_config: Settings of :meth:`quantize`; None where the model is quantized.
    """

    def __init__(
        self,
        folder: Path,
        keywords: dict[str, Any],
        quantize_config: BaseQuantizeConfig | None = None,
    ) -> None:
        super().__init__("AutoGPTQ", folder, keywords)
        self.quantize_config = quantize_config

    def quantize(self, examples: Sequence[Any], **options: Any) -> None:
        """Quantize the checkpoint, into a temporary folder that :meth:`close` removes.

        Args:
            examples: Samples of calibration: token ids, or mappings with ``input_ids`` and
                ``attention_mask``, as tokenizers return them.
            **options: Options of :data:`QUANTIZE`.

        Raises:
            ConfigError: An option is unknown, or there are no examples.
        """
        where = "AutoGPTQ.quantize"
        read_options(where, QUANTIZE, options)
        if not examples:
            raise ConfigError(f"[{where}] examples must be given; got none.")
        tokens = [tokens_of(where, example) for example in examples]
        if self.quantize_config is None:
            raise ConfigError(f"[{where}] the model must be of floats; got one that is quantized.")
        self._quantize(
            self.quantize_config.asked(tokens),
            f"AutoGPTQForCausalLM.from_pretrained(..., {self.quantize_config}).quantize(examples)",
        )

    def save_quantized(self, save_dir: str | PathLike[str], **options: Any) -> None:
        """Copy the quantized checkpoint to a new or an empty folder.

        Args:
            save_dir: The folder.
            **options: Options of :data:`SAVE`.

        Raises:
            ConfigError: The model is not quantized, or the folder holds something.
        """
        read_options("AutoGPTQ.save_quantized", SAVE, options)
        self._save(save_dir)


class AutoGPTQForCausalLM:
    """Opens checkpoints for GPTQ; it has no objects of its own.

    Raises:
        ConfigError: Every call is refused.
    """

    def __init__(self) -> NoReturn:
        raise ConfigError(
            "[AutoGPTQForCausalLM] a model is made by from_pretrained or from_quantized; got a "
            "call."
        )

    @classmethod
    def from_pretrained(
        cls, name: str | PathLike[str], quantize_config: BaseQuantizeConfig, **options: Any
    ) -> GPTQModel:
        """Open a checkpoint of floats, to be quantized.

        Args:
            name: Folder, hub id or ``quire-tiny``.
            quantize_config: Settings of :meth:`GPTQModel.quantize`.
            **options: Options of :data:`LOAD_FLOATS`, and settings of an engine, as in
                :class:`quire.LLM`.

        Raises:
            ConfigError: An option asks for what is not done, or the model is quantized.
        """
        where = "AutoGPTQ.from_pretrained"
        read_options(where, LOAD_FLOATS | ENGINE, options)
        folder = floats_folder(where, resolve_model(str(name)))
        return GPTQModel(folder, engine_keywords(where, options), quantize_config)

    @classmethod
    def from_quantized(cls, name: str | PathLike[str], **options: Any) -> GPTQModel:
        """Load a checkpoint that GPTQ has quantized.

        Args:
            name: Folder or hub id.
            **options: Options of :data:`LOAD_QUANTIZED`, and settings of an engine.

        Raises:
            ConfigError: An option asks for what is not done, or the model is another.
        """
        where = "AutoGPTQ.from_quantized"
        given = read_options(where, LOAD_QUANTIZED | ENGINE, options)
        folder = quantized_source(where, resolve_model(str(name)), "gptq")
        places = {"device_map": given["device_map"] or given["device"]}
        made = GPTQModel(folder, engine_keywords(where, {**options, **places}))
        assert made.model is not None
        return made
