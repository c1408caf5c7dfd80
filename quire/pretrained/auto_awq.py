"""``AutoAWQForCausalLM``: AWQ with the calls and options of AutoAWQ 0.2.9."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, NoReturn

from quire.core.counts import parse_count
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
from quire.pretrained.quantization_configs import QuantizationRequest, calibration_text, encode_by
from quire.quantizing.inputs.calibration import Calibration
from quire.quantizing.scheme import create_scheme
from quire.store.hub import resolve_model

_LOAD: dict[str, ForeignOption] = {
    "dtype": done("auto"),
    "trust_remote_code": idle("code of a checkpoint is never run", True),
    "safetensors": refused("must be True: pickles are not read", True),
    "device_map": done(),
    "download_kwargs": refused("is not done: HF_HOME and HF_TOKEN say where models are"),
    "torch_dtype": done("auto"),
}
LOAD_FLOATS: dict[str, ForeignOption] = _LOAD | {
    "low_cpu_mem_usage": idle("weights are read one by one", True),
    "use_cache": idle("the KV cache is always there", False),
}
LOAD_QUANTIZED: dict[str, ForeignOption] = _LOAD | {
    "quant_filename": refused("must be empty: config.json and the index say which files", ""),
    "max_seq_len": done(),
    "fuse_layers": idle(KERNELS, True),
    "use_exllama": idle(KERNELS, False),
    "use_exllama_v2": idle(KERNELS, False),
    "use_ipex": idle(KERNELS, False),
    "batch_size": idle("requests are batched as they come", 1),
    "max_memory": refused(GPUS),
    "offload_folder": refused("is not done: weights stay in memory"),
}
QUANTIZE: dict[str, ForeignOption] = {
    "tokenizer": done(),
    "quant_config": done(),
    "calib_data": done(),
    "split": refused("is of data sets that are fetched, which is not done", "train"),
    "text_column": refused("is of data sets that are fetched, which is not done", "text"),
    "duo_scaling": done(True),
    "export_compatible": refused("is not done: what is written is quantized", False),
    "apply_clip": done(True),
    "n_parallel_calib_samples": idle("samples are computed some at a time"),
    "max_calib_samples": done(128),
    "max_calib_seq_len": done(512),
    "max_chunk_memory": idle("memory does not depend on the text", 1 << 30),
    "quantizer_cls": refused("is code, which is not run"),
}
SAVE: dict[str, ForeignOption] = {
    "safetensors": refused("must be True: pickles are not written", True),
    "shard_size": done("5GB"),
}
#: Of ``quant_config``.
CONFIG: dict[str, ForeignOption] = {
    "quant_method": refused("must be awq", "awq"),
    "zero_point": done(True),
    "q_group_size": done(128),
    "w_bit": refused("must be 4", 4),
    "version": refused("must be GEMM: it is the order that is written", "gemm", "GEMM"),
    "modules_to_not_convert": done(),
}


class AWQModel(QuantizableModel):
    """A model of :class:`AutoAWQForCausalLM`."""

    @property
    def is_quantized(self) -> bool:
        """Whether the checkpoint is quantized."""
        return self.quantized

    def quantize(
        self, tokenizer: Any = None, quant_config: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Quantize the checkpoint, into a temporary folder that :meth:`close` removes.

        Args:
            tokenizer: Tokenizer of ``calib_data``; None for the checkpoint's own.
            quant_config: Options of :data:`CONFIG`.
            **options: Options of :data:`QUANTIZE`. ``calib_data`` is texts or a file of them;
                without it, the text is the model's own, else the package's.

        Raises:
            ConfigError: An option is unknown, or asks for what is not done.
        """
        given = read_options("AutoAWQ.quantize", QUANTIZE, options)
        config = read_options("AutoAWQ.quant_config", CONFIG, quant_config or {})
        settings = {
            "group_size": config["q_group_size"],
            "symmetric": not config["zero_point"],
            "duo_scaling": given["duo_scaling"],
            "clip": given["apply_clip"],
        }
        asked = QuantizationRequest(
            scheme=create_scheme("awq", settings),
            format="awq",
            skipped=config["modules_to_not_convert"] or [],
            calibration=Calibration(
                text=calibration_text("AutoAWQ.quantize", "calib_data", given["calib_data"]),
                count=given["max_calib_samples"],
                length=given["max_calib_seq_len"],
                where="[AutoAWQ.quantize] calib_data",
                encode=encode_by(tokenizer),
            ),
        )
        self._quantize(asked, f"model.quantize(tokenizer, quant_config={dict(quant_config or {})})")

    def save_quantized(self, save_dir: str | PathLike[str], **options: Any) -> None:
        """Copy the quantized checkpoint to a new or an empty folder.

        Args:
            save_dir: The folder.
            **options: Options of :data:`SAVE`.

        Raises:
            ConfigError: The model is not quantized, or the folder holds something.
        """
        given = read_options("AutoAWQ.save_quantized", SAVE, options)
        try:
            shard_bytes = parse_count(str(given["shard_size"]))
        except ValueError:
            raise ConfigError(
                "[AutoAWQ.save_quantized] shard_size must be bytes, as 5GB; got "
                f"{given['shard_size']!r:.40}."
            ) from None
        self._save(save_dir, shard_bytes)


class AutoAWQForCausalLM:
    """Opens checkpoints for AWQ; it has no objects of its own.

    Raises:
        ConfigError: Every call is refused.
    """

    def __init__(self) -> NoReturn:
        raise ConfigError(
            "[AutoAWQForCausalLM] a model is made by from_pretrained or from_quantized; got a call."
        )

    @classmethod
    def from_pretrained(cls, model_path: str | PathLike[str], **options: Any) -> AWQModel:
        """Open a checkpoint of floats, to be quantized.

        Args:
            model_path: Folder, hub id or ``quire-tiny``.
            **options: Options of :data:`LOAD_FLOATS`, and settings of an engine, as in
                :class:`quire.LLM`.

        Raises:
            ConfigError: An option asks for what is not done, or the model is quantized.
        """
        where = "AutoAWQ.from_pretrained"
        read_options(where, LOAD_FLOATS | ENGINE, options)
        folder = floats_folder(where, resolve_model(str(model_path)))
        return AWQModel("AutoAWQ", folder, engine_keywords(where, options))

    @classmethod
    def from_quantized(cls, quant_path: str | PathLike[str], **options: Any) -> AWQModel:
        """Load a checkpoint that AWQ has quantized.

        Args:
            quant_path: Folder or hub id.
            **options: Options of :data:`LOAD_QUANTIZED`, and settings of an engine.

        Raises:
            ConfigError: An option asks for what is not done, or the model is another.
        """
        where = "AutoAWQ.from_quantized"
        given = read_options(where, LOAD_QUANTIZED | ENGINE, options)
        folder = quantized_source(where, resolve_model(str(quant_path)), "awq")
        keywords = engine_keywords(where, options)
        if given["max_seq_len"] is not None:
            keywords["max_model_len"] = given["max_seq_len"]
        made = AWQModel("AutoAWQ", folder, keywords)
        assert made.model is not None
        return made
