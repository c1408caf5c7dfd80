"""Names of what weights may be rounded to at load, and of what files may have."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

QuantizationName: TypeAlias = Literal["int8", "int6", "int5", "int4", "nf4", "int3", "int2"]
QUANTIZATIONS: tuple[QuantizationName, ...] = get_args(QuantizationName)
#: Other engines' names, most of them of what a checkpoint has.
StoredName: TypeAlias = Literal[
    "awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round", "fp8", "fbgemm_fp8",
    "compressed-tensors", "bitsandbytes", "modelopt", "modelopt_fp4", "hqq",
    "torchao", "mxfp4", "gguf",
]  # fmt: skip
STORED_NAMES: tuple[StoredName, ...] = get_args(StoredName)
