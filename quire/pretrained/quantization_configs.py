"""Settings of quantization in the names of transformers: what each asks of ``quire quantize``.

The options, their order and their defaults are those of transformers 5.24; one that cannot be done
is refused when the settings are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from quire.core.errors import ConfigError
from quire.pretrained.foreign_options import KERNELS, ForeignOption, idle, refused
from quire.pretrained.types import dtype_name
from quire.quantizing.inputs.calibration import Calibration
from quire.quantizing.scheme import QuantizationScheme, create_scheme
from quire.store.hub import resolve_model
from quire.text.tokenizers.tokenizer import load_tokenizer

HEADS = ("lm_head", "embed_tokens", "model.embed_tokens")
#: Order of a layer's matrices where one is calibrated after another.
STAGES = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationRequest:
    """A quantization as settings ask for it.

    Attributes:
        scheme: Scheme of all matrices that are quantized.
        format: Name of the stored format.
        skipped: Parts of names of matrices that stay floats.
        only: Suffixes of the names of matrices that are quantized; None for all.
        stated: Entries of ``quantization_config`` that only other programs read.
        calibration: The text to calibrate on.
        examples: Token ids of samples, instead of text.
    """

    scheme: QuantizationScheme
    format: str
    skipped: Sequence[str] = ()
    only: Sequence[str] | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    examples: Sequence[Sequence[int]] | None = None


class QuantizationConfig(ABC):
    """Settings of one method, as a dataclass.

    Attributes:
        quant_method: Name of the method in ``config.json``.
        OPTIONS: Fields that are not served, or change nothing.
    """

    quant_method: ClassVar[str] = ""
    OPTIONS: ClassVar[Mapping[str, ForeignOption]] = {}

    @abstractmethod
    def asked(self) -> QuantizationRequest:
        """Return the quantization that the settings ask for.

        Raises:
            ConfigError: The settings are out of range or contradict one another.
        """

    def _check(self) -> None:
        for name, option in self.OPTIONS.items():
            option.read(type(self).__name__, name, getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        return {"quant_method": self.quant_method, **{n: getattr(self, n) for n in names}}


@dataclass
class BitsAndBytesConfig(QuantizationConfig):
    """NF4, FP4 or LLM.int8, stored as bitsandbytes stores them.

    Args:
        load_in_8bit, load_in_4bit: Bits of a weight; exactly one of the two must be true.
        llm_int8_threshold: A number that is stored: inputs from there on are multiplied in 16 bits
            by programs that round inputs; here all are.
        llm_int8_skip_modules: Parts of names of matrices that stay floats. The output head does.
        llm_int8_enable_fp32_cpu_offload, llm_int8_has_fp16_weight: False, the only value.
        bnb_4bit_compute_dtype: Element type that is stored; None for float32. Here activations are
            no coarser.
        bnb_4bit_quant_type: ``fp4`` or ``nf4``.
        bnb_4bit_use_double_quant: Whether scales are rounded to bytes.
        bnb_4bit_quant_storage: Bytes, the only value.

    Raises:
        ConfigError: An option asks for what is not done.
    """

    load_in_8bit: bool = False
    load_in_4bit: bool = False
    llm_int8_threshold: float = 6.0
    llm_int8_skip_modules: list[str] | None = None
    llm_int8_enable_fp32_cpu_offload: bool = False
    llm_int8_has_fp16_weight: bool = False
    bnb_4bit_compute_dtype: Any = None
    bnb_4bit_quant_type: str = "fp4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_quant_storage: Any = None

    quant_method: ClassVar[str] = "bitsandbytes"
    OPTIONS: ClassVar[Mapping[str, ForeignOption]] = {
        "llm_int8_enable_fp32_cpu_offload": refused("must be False: one device has all", False),
        "llm_int8_has_fp16_weight": refused("must be False: weights are not trained", False),
    }

    def __post_init__(self) -> None:
        self._check()
        where = type(self).__name__
        if self.load_in_4bit == self.load_in_8bit:
            raise ConfigError(
                f"[{where}] one of load_in_8bit and load_in_4bit must be True; got "
                f"{'both' if self.load_in_4bit else 'none'}."
            )
        if self.bnb_4bit_quant_type not in ("fp4", "nf4"):
            raise ConfigError(
                f"[{where}] bnb_4bit_quant_type must be fp4 or nf4; got {self.bnb_4bit_quant_type}."
            )
        if str(self.bnb_4bit_quant_storage or "uint8").removeprefix("torch.") != "uint8":
            raise ConfigError(
                f"[{where}] bnb_4bit_quant_storage must be uint8: codes are stored as bytes; got "
                f"{self.bnb_4bit_quant_storage}."
            )
        if not isinstance(self.llm_int8_threshold, int | float):
            raise ConfigError(
                f"[{where}] llm_int8_threshold must be a number; got {self.llm_int8_threshold!r}."
            )
        self.bnb_4bit_compute_dtype = dtype_name(
            where, "bnb_4bit_compute_dtype", self.bnb_4bit_compute_dtype or "float32"
        )
        self.bnb_4bit_quant_storage = "uint8"

    def asked(self) -> QuantizationRequest:
        """Return what the settings come to."""
        skipped = self.llm_int8_skip_modules or []
        if self.load_in_8bit:
            stated: dict[str, Any] = {"llm_int8_threshold": float(self.llm_int8_threshold)}
            scheme = create_scheme("llm-int8", {})
        else:
            stated = {"bnb_4bit_compute_dtype": self.bnb_4bit_compute_dtype}
            double = {"double_quant": bool(self.bnb_4bit_use_double_quant)}
            scheme = create_scheme(self.bnb_4bit_quant_type, double)
        return QuantizationRequest(
            scheme=scheme, format="bitsandbytes", skipped=skipped, stated=stated
        )


@dataclass
class GPTQConfig(QuantizationConfig):
    """GPTQ, stored as GPTQModel stores it.

    Args:
        bits: 2, 3, 4 or 8.
        tokenizer: Tokenizer of ``dataset``: an object that is called with a text, or a folder;
            None for the checkpoint's own.
        dataset: Texts, or the path of a text or ``.jsonl``; None for the model's own text, else
            the package's. Names of data sets (``c4``) are refused: nothing is fetched.
        group_size: Inputs that share a scale; -1 for all of a row.
        damp_percent: Share of the inputs' mean square that is added.
        desc_act: Whether inputs are taken by their size; needs ``act_group_aware=False``.
        act_group_aware: The same without breaking groups up; off where ``desc_act`` is on.
        sym: Whether groups have no zeros.
        true_sequential: Whether a matrix is calibrated after those before it in its layer.
        format: ``gptq``; for ``sym=False`` it must be ``gptq_v2``.
        meta: Facts that are stored.
        model_seqlen: Tokens of a sample.
        modules_in_block_to_quantize: Suffixes of names, in the order of a layer; others stay
            floats.
        batch_size, pad_token_id: Numbers that change nothing: samples are computed without padding.
        backend, block_name_to_quantize, module_name_preceding_first_block, max_input_length,
            cache_block_outputs: Defaults, the only values.

    Raises:
        ConfigError: An option asks for what is not done.
    """

    bits: int
    tokenizer: Any = None
    dataset: Sequence[str] | str | None = None
    group_size: int = 128
    damp_percent: float = 0.1
    desc_act: bool = False
    act_group_aware: bool = True
    sym: bool = True
    true_sequential: bool = True
    format: str = "gptq"
    meta: dict[str, Any] | None = None
    backend: str | None = None
    model_seqlen: int | None = None
    block_name_to_quantize: str | None = None
    module_name_preceding_first_block: list[str] | None = None
    batch_size: int = 1
    pad_token_id: int | None = None
    max_input_length: int | None = None
    cache_block_outputs: bool = True
    modules_in_block_to_quantize: list[list[str]] | None = None

    quant_method: ClassVar[str] = "gptq"
    OPTIONS: ClassVar[Mapping[str, ForeignOption]] = {
        "backend": refused(f"must be None: {KERNELS}", None, "auto"),
        "block_name_to_quantize": refused("must be None: it is known for each architecture"),
        "module_name_preceding_first_block": refused("must be None: it is known"),
        "batch_size": idle("samples are computed without padding", 1),
        "pad_token_id": idle("samples are computed without padding"),
        "max_input_length": refused("must be None: it is a setting of exllama's kernels"),
        "cache_block_outputs": refused("must be True: layers are computed once", True),
    }

    def __post_init__(self) -> None:
        self._check()
        wanted = "gptq" if self.sym else "gptq_v2"
        if self.format != wanted:
            raise ConfigError(
                f"[GPTQConfig] format must be {wanted} for sym={self.sym}; got {self.format}."
            )
        if self.desc_act and self.act_group_aware:
            # transformers does so, too: both are orders of the same columns.
            self.act_group_aware = False
        self.asked()

    def asked(self) -> QuantizationRequest:
        """Return what the settings come to."""
        settings = {
            "bits": self.bits,
            "group_size": self.group_size,
            "symmetric": self.sym,
            "act_order": self.desc_act,
            "group_aware": self.act_group_aware,
            "true_sequential": self.true_sequential,
            "damping": self.damp_percent,
        }
        return QuantizationRequest(
            scheme=create_scheme("gptq", settings),
            format="gptq",
            only=_ordered(self.modules_in_block_to_quantize),
            stated={} if self.meta is None else {"meta": self.meta},
            calibration=Calibration(
                text=calibration_text("GPTQConfig", "dataset", self.dataset),
                length=self.model_seqlen,
                where="[GPTQConfig] dataset",
                encode=encode_by(self.tokenizer),
            ),
        )


@dataclass
class AwqConfig(QuantizationConfig):
    """AWQ, stored as AutoAWQ stores it; calibrated on the text with the model, or the package's.

    Args:
        bits: 4.
        group_size: Inputs that share a scale.
        zero_point: Whether groups have zeros.
        backend: ``auto``, the only value.
        modules_to_not_convert: Parts of names of matrices that stay floats.

    Raises:
        ConfigError: An option asks for what is not done.
    """

    bits: int = 4
    group_size: int = 128
    zero_point: bool = True
    backend: str = "auto"
    modules_to_not_convert: list[str] | None = None

    quant_method: ClassVar[str] = "awq"
    OPTIONS: ClassVar[Mapping[str, ForeignOption]] = {
        "backend": refused(f"must be auto: {KERNELS}", "auto"),
    }

    def __post_init__(self) -> None:
        self._check()
        if self.bits != 4:
            raise ConfigError(f"[AwqConfig] bits must be 4; got {self.bits}.")
        self.asked()

    def asked(self) -> QuantizationRequest:
        """Return what the settings come to."""
        settings = {
            "bits": self.bits,
            "group_size": self.group_size,
            "symmetric": not self.zero_point,
        }
        return QuantizationRequest(
            scheme=create_scheme("awq", settings),
            format="awq",
            skipped=self.modules_to_not_convert or [],
        )


def calibration_text(
    where: str, name: str, given: Sequence[str] | str | None
) -> Path | Sequence[str] | None:
    """Return texts, or the file that they are in.

    Raises:
        ConfigError: The file does not exist, or there is no text.
    """
    if given is None:
        return None
    if isinstance(given, str):
        if not Path(given).is_file():
            raise ConfigError(
                f"[{where}] {name} must be texts or a file of them, for nothing is fetched; got "
                f"{given!r:.80}. Give a list of texts."
            )
        return Path(given)
    if not given or not all(isinstance(text, str) for text in given):
        raise ConfigError(f"[{where}] {name} must hold texts; got {given!r:.80}.")
    return list(given)


def encode_by(tokenizer: Any) -> Callable[[str], list[int]] | None:
    """Return what makes tokens of a text: a tokenizer that is called, or that of a folder."""
    if isinstance(tokenizer, str | PathLike):
        return load_tokenizer(resolve_model(str(tokenizer), weights=False)).encode
    return None if tokenizer is None else lambda text: list(tokenizer(text)["input_ids"])


def _ordered(stages: Sequence[Sequence[str]] | None) -> list[str] | None:
    """Return the names of stages that are in the order of a layer, or nothing of nothing."""
    if stages is None:
        return None
    places = {name: place for place, names in enumerate(STAGES) for name in names}
    found = [{places.get(name, -1) for name in names} for names in stages]
    # Each list has the matrices of one input, and a later one comes later.
    order = [place for row in found for place in row]
    if -1 in order or [len(row) for row in found] != [1] * len(found) or order != sorted({*order}):
        raise ConfigError(
            "[GPTQConfig] modules_in_block_to_quantize must have names of "
            f"{', '.join(name for names in STAGES for name in names)}, those of one input in one "
            f"list, in this order; got {stages!r:.200}."
        )
    return [name for names in stages for name in names]
