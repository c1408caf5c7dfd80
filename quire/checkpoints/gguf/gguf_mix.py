"""Types of the tensors of a GGUF file: llama.cpp's mixes, and the types of short rows instead.

Source: ``llama_tensor_get_type_impl`` and ``tensor_type_fallback`` of llama.cpp (llama-quant.cpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.core.model.model_config import ModelConfig

#: What a mix is called, the type of most of its matrices, and ``general.file_type``.
MIXES = {
    "F32": ("F32", 0), "F16": ("F16", 1), "Q4_0": ("Q4_0", 2), "Q4_1": ("Q4_1", 3),
    "Q8_0": ("Q8_0", 7), "Q5_0": ("Q5_0", 8), "Q5_1": ("Q5_1", 9), "Q2_K": ("Q2_K", 10),
    "Q3_K_S": ("Q3_K", 11), "Q3_K_M": ("Q3_K", 12), "Q3_K_L": ("Q3_K", 13),
    "Q4_K_S": ("Q4_K", 14), "Q4_K_M": ("Q4_K", 15), "Q5_K_S": ("Q5_K", 16),
    "Q5_K_M": ("Q5_K", 17), "Q6_K": ("Q6_K", 18), "IQ2_XXS": ("IQ2_XXS", 19),
    "IQ2_XS": ("IQ2_XS", 20), "IQ3_XS": ("IQ3_S", 22), "IQ3_XXS": ("IQ3_XXS", 23),
    "IQ1_S": ("IQ1_S", 24), "IQ4_NL": ("IQ4_NL", 25), "IQ3_S": ("IQ3_S", 26),
    "IQ3_M": ("IQ3_S", 27), "IQ2_S": ("IQ2_XS", 28), "IQ2_M": ("IQ2_S", 29),
    "IQ4_XS": ("IQ4_XS", 30), "IQ1_M": ("IQ1_M", 31), "BF16": ("BF16", 32),
    "TQ1_0": ("TQ1_0", 36), "TQ2_0": ("TQ2_0", 37), "MXFP4_MOE": ("MXFP4", 38),
}  # fmt: skip
#: Those that give all matrices one type.
_PLAIN = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
#: What rows have that are no whole number of blocks of 256.
_SHORTER = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "IQ4_XS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL",
    "IQ2_S": "IQ4_NL", "IQ2_XS": "IQ4_NL", "IQ2_XXS": "IQ4_NL", "IQ1_M": "IQ4_NL",
    "IQ1_S": "IQ4_NL",
}  # fmt: skip
#: Types that are worth nothing where it is not known how much errors count.
_NEEDY = ("IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")
#: Mixes that have a rule of their own below three bits: those of IQ2 and IQ1.
_FEW_BITS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")
#: Of the embedding, where the head is another matrix.
_EMBEDDING = {
    "IQ2_XXS": "Q2_K", "IQ2_XS": "Q2_K", "IQ1_S": "Q2_K", "IQ1_M": "Q2_K", "IQ2_S": "IQ3_S",
    "IQ2_M": "IQ3_S", "IQ3_XXS": "IQ3_S", "TQ1_0": "Q4_K", "TQ2_0": "Q4_K",
}  # fmt: skip
#: Of the attention's output, in models without eight experts.
_ATTENTION_OUTPUT = {
    "Q2_K": "Q3_K",
    "Q3_K_M": "Q4_K",
    "Q3_K_L": "Q5_K",
    "IQ3_XXS": "IQ3_S",
    "IQ3_M": "Q4_K",
}
#: Values, alone or with queries and keys.
_VALUES = ("attn_v", "attn_qkv")
_LAYER = re.compile(r"blk\.(\d+)\.(\w+?)(?:_exps)?\.weight")


@dataclass(frozen=True, slots=True)
class Mix:
    """Choice of the types of a file's matrices.

    Attributes:
        name: A key of :data:`MIXES`.
        config: Configuration of the model.
        pure: Whether all matrices have the type of most.
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
        """Value of ``general.file_type``."""
        return MIXES[self.name][1]

    def type_of(self, tensor: str, columns: int) -> str:
        """Return the type of a matrix, by its name in the file and the length of its rows."""
        wanted = self.main if self.pure or self.name in _PLAIN else self._wanted(tensor)
        if columns % LAYOUTS[wanted].block_size == 0:
            return wanted
        if self.name not in _PLAIN and not self.pure and self._is_output(tensor):
            wanted = "Q8_0"
        else:
            wanted = _SHORTER.get(wanted, "F16")
        return wanted if columns % LAYOUTS[wanted].block_size == 0 else "F16"

    def _is_output(self, tensor: str) -> bool:
        tied = self.config.tie_word_embeddings and tensor == "token_embd.weight"
        return tied or tensor == "output.weight"

    def needs_importance(self, tensor: str, columns: int) -> bool:
        """Whether llama.cpp refuses to make a matrix of its type without an importance."""
        name = tensor.removesuffix(".weight")
        return name not in ("token_embd", "output") and self.type_of(tensor, columns) in _NEEDY

    def _wanted(self, tensor: str) -> str:
        if self.name == "MXFP4_MOE":
            return self.main if "_exps." in tensor else "Q8_0"
        if self._is_output(tensor):
            few = self.name in _FEW_BITS or self.name == "IQ3_XXS"
            return "Q5_K" if few else "Q6_K"
        if tensor == "token_embd.weight":
            return _EMBEDDING.get(self.name, self.main)
        match = _LAYER.fullmatch(tensor)
        if match is None:
            return self.main
        layer, part = int(match[1]), match[2]
        if self.name in _FEW_BITS:
            return self._few_bits(layer, part)
        if part in _VALUES:
            return self._value(layer)
        if part in ("attn_q", "attn_k"):
            return self._query_or_key(part)
        if part == "ffn_down":
            return self._down(layer)
        if part in ("ffn_gate", "ffn_up"):
            return self._gate_or_up(layer)
        if part == "attn_output":
            return self._attention_output()
        return self.main

    def _few_bits(self, layer: int, part: str) -> str:
        """Return the type of a matrix of a layer in the mixes of IQ2 and IQ1."""
        more = "IQ3_S" if self.name in ("IQ2_S", "IQ2_M") else "Q2_K"
        if part in _VALUES:
            return "Q4_K" if self._shared_values or self._num_experts >= 4 else more
        if part == "attn_k":
            return "Q4_K" if self._eight_experts else self.main
        if part == "ffn_down":
            return more if layer < self.config.num_layers // 8 else self.main
        if part == "attn_output":
            if self._eight_experts:
                return "Q5_K"
            if self.name in ("IQ1_S", "IQ1_M"):
                return "IQ2_XXS"
            return "IQ3_S" if self.name in ("IQ2_S", "IQ2_M") else self.main
        return self.main

    def _query_or_key(self, part: str) -> str:
        if part == "attn_k" and self._eight_experts:
            return "Q8_0"
        return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(self.name, self.main)

    def _gate_or_up(self, layer: int) -> str:
        layers = self.config.num_layers
        if self.name == "IQ3_XS" and layers // 8 <= layer < 7 * layers // 8:
            return "IQ3_XXS"
        return self.main

    @property
    def _num_experts(self) -> int:
        return 1 if self.config.moe is None else self.config.moe.num_experts

    @property
    def _shared_values(self) -> bool:
        return self.config.num_heads // self.config.num_kv_heads >= 4

    @property
    def _eight_experts(self) -> bool:
        return self._num_experts == 8

    def _value(self, layer: int) -> str:
        shared = self._shared_values
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
            case "IQ3_XS" | "IQ3_S" | "IQ3_XXS":
                return "Q4_K" if shared else self.main
            case "IQ3_M":
                return "Q4_K"
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
            case "IQ3_M":
                more = layer < layers // 8 or (self._eight_experts and self._more_bits(layer))
                return "Q4_K" if more else self.main
        return self.main

    def _attention_output(self) -> str:
        if self._eight_experts:
            few = (
                "Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS", "IQ3_XS",
                "IQ3_XXS", "IQ3_S", "IQ3_M",
            )  # fmt: skip
            return "Q5_K" if self.name in few else self.main
        return _ATTENTION_OUTPUT.get(self.name, self.main)

    def _more_bits(self, layer: int) -> bool:
        """Whether a layer is among the first or last eighth, or every third between."""
        eighth, layers = self.config.num_layers // 8, self.config.num_layers
        return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
