"""Which type each tensor of a GGUF file has: llama.cpp's mixes, and what short rows have instead.

Source: ``llama_tensor_get_type_impl`` and ``tensor_type_fallback`` of llama.cpp (llama-quant.cpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.core.model_config import ModelConfig
from quire.quantization.gguf_layouts import LAYOUTS

#: What a mix is called, the type of most of its matrices, and ``general.file_type``.
MIXES = {
    "F32": ("F32", 0), "F16": ("F16", 1), "Q4_0": ("Q4_0", 2), "Q4_1": ("Q4_1", 3),
    "Q8_0": ("Q8_0", 7), "Q5_0": ("Q5_0", 8), "Q5_1": ("Q5_1", 9), "Q2_K": ("Q2_K", 10),
    "Q3_K_S": ("Q3_K", 11), "Q3_K_M": ("Q3_K", 12), "Q3_K_L": ("Q3_K", 13),
    "Q4_K_S": ("Q4_K", 14), "Q4_K_M": ("Q4_K", 15), "Q5_K_S": ("Q5_K", 16),
    "Q5_K_M": ("Q5_K", 17), "Q6_K": ("Q6_K", 18), "IQ4_NL": ("IQ4_NL", 25),
    "IQ4_XS": ("IQ4_XS", 30), "BF16": ("BF16", 32),
}  # fmt: skip
#: Those that give some tensors more bits.
_MIXED = tuple(name for name in MIXES if name.endswith(("_S", "_M", "_L", "_K"))) + (
    "IQ4_NL",
    "IQ4_XS",
)
#: What rows have that are no whole number of blocks of 256.
_SHORTER = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL",
}  # fmt: skip
_LAYER = re.compile(r"blk\.(\d+)\.(\w+?)(?:_exps)?\.weight")


@dataclass(frozen=True, slots=True)
class Mix:
    """How the matrices of a file are stored.

    Attributes:
        name: A key of :data:`MIXES`.
        config: Of the model.
        pure: All matrices have the type of most.
        has_importance: Whether errors of inputs are known to count differently.
    """

    name: str
    config: ModelConfig
    pure: bool = False
    has_importance: bool = False

    @property
    def main(self) -> str:
        """The type of most matrices."""
        return MIXES[self.name][0]

    @property
    def file_type(self) -> int:
        """What ``general.file_type`` says."""
        return MIXES[self.name][1]

    def type_of(self, tensor: str, columns: int) -> str:
        """Return the type of a matrix, by its name in the file and the length of its rows."""
        wanted = self.main if self.pure or self.name not in _MIXED else self._wanted(tensor)
        if columns % LAYOUTS[wanted].block_size == 0:
            return wanted
        if self.name in _MIXED and not self.pure and self._is_output(tensor):
            wanted = "Q8_0"
        else:
            wanted = _SHORTER.get(wanted, "F16")
        return wanted if columns % LAYOUTS[wanted].block_size == 0 else "F16"

    def _is_output(self, tensor: str) -> bool:
        tied = self.config.tie_word_embeddings and tensor == "token_embd.weight"
        return tied or tensor == "output.weight"

    def _wanted(self, tensor: str) -> str:
        if self._is_output(tensor):
            return "Q6_K"
        match = _LAYER.fullmatch(tensor)
        if match is None:
            return self.main
        layer, part = int(match[1]), match[2]
        if part == "attn_v":
            return self._value(layer)
        if part == "attn_k":
            return "Q8_0" if self._eight_experts else self.main
        if part == "ffn_down":
            return self._down(layer)
        if part == "attn_output":
            return self._attention_output()
        return self.main

    @property
    def _eight_experts(self) -> bool:
        return self.config.moe is not None and self.config.moe.num_experts == 8

    def _value(self, layer: int) -> str:
        shared = self.config.num_heads // self.config.num_kv_heads >= 4
        if self._eight_experts:
            return "Q8_0"
        match self.name:
            case "Q2_K":
                return "Q4_K" if shared else "Q3_K"
            case "Q3_K_M":
                return "Q5_K" if layer < 2 else "Q4_K"
            case "Q3_K_L":
                return "Q5_K"
            case "IQ4_NL" | "IQ4_XS":
                return "Q5_K" if shared else self.main
            case "Q4_K_M" | "Q5_K_M":
                return "Q6_K" if self._more_bits(layer) else self.main
            case "Q4_K_S":
                return "Q5_K" if layer < 4 else self.main
        return self.main

    def _down(self, layer: int) -> str:
        layers = self.config.num_layers
        match self.name:
            case "Q2_K":
                return "Q3_K"
            case "Q3_K_M":
                return "Q5_K" if layer < layers // 16 else "Q4_K"
            case "Q3_K_L":
                return "Q5_K"
            case "Q4_K_M" | "Q5_K_M":
                return "Q6_K" if self._more_bits(layer) else self.main
            case "IQ4_NL" | "IQ4_XS":
                more = layer < layers // 8 and not self.has_importance
                return "Q5_K" if more else self.main
            case "Q4_K_S":
                return "Q5_K" if layer < layers // 8 else self.main
        return self.main

    def _attention_output(self) -> str:
        if self._eight_experts:
            few = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
            return "Q5_K" if self.name in few else self.main
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(self.name, self.main)

    def _more_bits(self, layer: int) -> bool:
        """Whether a layer is among the first or last eighth, or every third between."""
        eighth, layers = self.config.num_layers // 8, self.config.num_layers
        return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
