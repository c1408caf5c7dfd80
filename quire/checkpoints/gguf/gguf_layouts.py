"""Names and sizes of the tensor types of GGUF files; what the bits mean is in ``gguf_types``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A type's layout of a row: blocks of the same number of elements and bytes.

    Attributes:
        name: Name of the type as llama.cpp spells it.
        code: The number in the file.
        block_size: Elements of a block; a row is a whole number of them.
        block_bytes: Bytes of a block.
    """

    name: str
    code: int
    block_size: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        """Whether elements share scales."""
        return self.block_size > 1


LAYOUTS = {
    layout.name: layout
    for layout in (
        BlockLayout("F32", 0, 1, 4),
        BlockLayout("F16", 1, 1, 2),
        BlockLayout("BF16", 30, 1, 2),
        BlockLayout("Q4_0", 2, 32, 18),
        BlockLayout("Q4_1", 3, 32, 20),
        BlockLayout("Q5_0", 6, 32, 22),
        BlockLayout("Q5_1", 7, 32, 24),
        BlockLayout("Q8_0", 8, 32, 34),
        BlockLayout("Q2_K", 10, 256, 84),
        BlockLayout("Q3_K", 11, 256, 110),
        BlockLayout("Q4_K", 12, 256, 144),
        BlockLayout("Q5_K", 13, 256, 176),
        BlockLayout("Q6_K", 14, 256, 210),
        BlockLayout("IQ4_NL", 20, 32, 18),
        BlockLayout("IQ4_XS", 23, 256, 136),
        BlockLayout("IQ2_XXS", 16, 256, 66),
        BlockLayout("IQ2_XS", 17, 256, 74),
        BlockLayout("IQ3_XXS", 18, 256, 98),
        BlockLayout("IQ1_S", 19, 256, 50),
        BlockLayout("IQ3_S", 21, 256, 110),
        BlockLayout("IQ2_S", 22, 256, 82),
        BlockLayout("IQ1_M", 29, 256, 56),
        BlockLayout("TQ1_0", 34, 256, 54),
        BlockLayout("TQ2_0", 35, 256, 66),
        BlockLayout("MXFP4", 39, 32, 17),
    )
}
LAYOUT_BY_CODE = {layout.code: layout for layout in LAYOUTS.values()}

#: Types that files may have and Quire cannot read, for messages.
OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4",
}  # fmt: skip
