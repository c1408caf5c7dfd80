"""Most memory that encoding pictures takes, known before a model is loaded.

It follows what the encoder allocates: T rows of pictures that are encoded together, of which S are
the largest picture's, W width of the encoder, P patch edge, D model dim; all in float32.
"""

from __future__ import annotations

from quire.core.model.vision_config import VisionConfig
from quire.models.vision.attention import PART_ROWS
from quire.models.vision.encoder import BATCH_PATCHES
from quire.models.vision.slices import MIN_ROWS, SLICE_WORK
from quire.models.vision.tiles import STRIP


def encoding_bytes(config: VisionConfig, width: int, max_model_len: int) -> int:
    """Return the bytes that encoding takes at most, the rows that come out included.

    Args:
        config: The encoder's.
        width: D.
        max_model_len: A picture with more tokens is in no prompt that is computed.
    """
    per_picture = config.num_patches + config.has_class_token
    if config.input.multiple:
        largest = min(config.most_patches, max_model_len * config.merge**2)
        rows = max(BATCH_PATCHES, largest)
    else:
        largest = per_picture
        together = max(1, BATCH_PATCHES // config.num_patches)
        if config.joins_tiles:
            together = min(together, config.input.most_tiles)
        rows = per_picture * together
    own = config.hidden_size
    # Pixels as floats, twice while they are arranged, and a copy of what becomes of them.
    embedding = 2 * largest * 3 * config.patch_size**2 + 2 * rows * own
    # The residual stream, queries, keys and values, and what attention gives.
    layers = 5 * rows * own + _attention(config, rows, largest) + _mlp(config, rows)
    # Features, the same as squares, and rows that come out, each twice.
    made = rows // config.merge**2 * width
    projecting = 2 * rows * own + 2 * made
    tiles = 0
    if config.joins_tiles:
        edge = config.image_size // config.patch_size
        joined = max(config.most_tokens, BATCH_PATCHES + BATCH_PATCHES // edge)
        strip = (2 * STRIP + 2) * edge * max(_grid_edges(config)) * (2 * own + 4 * width)
        tiles = config.most_patches * own + 2 * joined * width + strip
    return 4 * (max(embedding, layers, projecting) + tiles)


def _attention(config: VisionConfig, rows: int, largest: int) -> int:
    """Return the elements of keys, values and copies of heads, of spans that go together."""
    head_dim = config.hidden_size // config.num_heads
    together = 2 * min(rows, PART_ROWS) * config.hidden_size
    # Of a span that is longer than a slice, as many heads as are one: at least one.
    heads_width = max(head_dim, SLICE_WORK // (2 * largest**2))
    return together + 8 * largest * min(heads_width, config.hidden_size)


def _mlp(config: VisionConfig, rows: int) -> int:
    up = config.intermediate_size * (1 + config.gated_mlp)
    work = (config.hidden_size + 2 * up) * config.hidden_size
    step = min(rows, max(MIN_ROWS, SLICE_WORK // work))
    return step * (up + config.intermediate_size * config.gated_mlp + 2 * config.hidden_size)


def _grid_edges(config: VisionConfig) -> list[int]:
    """Return how many tiles each grid has in a row or a column, whichever are more."""
    return [max(size) // config.image_size for size in config.input.grids]
