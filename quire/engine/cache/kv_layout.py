"""The policy of how many blocks a request gets when it starts, and whether they lie in one run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVLayout:
    """A policy of allocation; attention reads blocks through their tables under each.

    Attributes:
        num_reserved: Blocks that a request gets at once, whatever it needs; 0 gives it blocks as
            its tokens come (paged).
        in_one_run: Whether the blocks have consecutive ids, so that the request's KV lies in one
            piece in each layer.
    """

    num_reserved: int = 0
    in_one_run: bool = False

    @property
    def shares_blocks(self) -> bool:
        """Whether several requests may hold a block."""
        return self.num_reserved == 0


def create_layout(name: str, max_model_len: int, block_size: int, num_blocks: int) -> KVLayout:
    """Return the layout of ``--kv-layout``.

    Args:
        name: The layout's name: ``paged``, ``static`` or ``contiguous``.
        max_model_len: Tokens that ``static`` and ``contiguous`` reserve for each request.
        block_size: Tokens per block.
        num_blocks: Number of blocks of the pool, the null block included.
    """
    if name == "paged":
        return KVLayout()
    # A pool may hold less than the context length; a request then ends where the pool does.
    num_reserved = min(-(-max_model_len // block_size), num_blocks - 1)
    return KVLayout(num_reserved, in_one_run=name == "contiguous")
