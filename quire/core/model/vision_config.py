"""The pictures that a model needs: their preparation, and the encoder's shape; plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from quire.core.model.picture_tiling import TOLERANCE, Tiling

#: Ways to cut a picture, see :class:`PictureShape`.
Cut = Literal["", "tiles", "grid", "square", "crops"]


@dataclass(frozen=True, slots=True)
class PictureShape:
    """The preparation of a picture of any size for the encoder: its size and its values.

    Attributes:
        height, width: Height and width of what the encoder is given, in pixels; 0 where it takes
            any size.
        shortest_edge: Length that the picture's shorter edge is made, in pixels; it keeps its
            proportions, and the middle is cut out; None: it is made ``height`` x ``width``.
        multiple: Number that edges become multiples of, so that there are ``min_pixels`` to
            ``max_pixels`` and proportions stay about the same; 0 where the size is fixed.
        longest_edge: Length that the picture's longer edge is made first; None where its size is
            reached at once.
        cut: Way in which the picture is cut. Empty: it is not. ``tiles`` (Idefics3): its edges
            become multiples of ``height``, it is cut into tiles of ``height`` x ``width``, and
            comes as a whole in that size after them. ``grid`` (LLaVA-NeXT): it comes as a whole
            first; then it is laid on the middle of the one of ``grids`` that it fills best, in
            proportion, black around it, and cut. ``square``: it is laid on the middle of a square
            of the mean colour, which is the whole. ``crops`` (Gemma 3): it comes as a whole and, if
            it is long, in equal parts after that.
        grids: Heights and widths, multiples of ``height`` and ``width``.
        cut_alone: Whether it is cut only where it is a prompt's one picture; of several each is a
            ``square``.
        most_crops, least_crop_edge, least_crop_ratio: Parts of a picture at most; edges of a part,
            in pixels, and longer to shorter edge of the picture, at least.
        resample: Pillow's number of the filter; 3 is bicubic.
        rescale: Factor of values of 0 to 255.
        mean, std: Means and deviations of red, green and blue; values are then less the mean,
            divided by the deviation.
    """

    height: int
    width: int
    shortest_edge: int | None = None
    multiple: int = 0
    min_pixels: int = 0
    max_pixels: int = 0
    longest_edge: int | None = None
    cut: Cut = ""
    grids: tuple[tuple[int, int], ...] = ()
    cut_alone: bool = False
    most_crops: int = 0
    least_crop_edge: int = 1
    least_crop_ratio: float = 1.0
    resample: int = 3
    rescale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def is_fixed(self) -> bool:
        """Whether all pictures become equally large, and are written alike."""
        return not self.multiple and self.longest_edge is None and not self.cut

    @property
    def most_tiles(self) -> int:
        """Pictures of ``height`` x ``width`` that come out of one at most."""
        if self.cut == "tiles":
            across = -(-(self.longest_edge or 0) // self.width)
            return across**2 + 1
        if self.cut == "grid":
            area = self.height * self.width
            return 1 + max(height * width // area for height, width in self.grids)
        return 1 + self.most_crops

    @property
    def most_bytes(self) -> int:
        """Memory of the pixels of the largest picture that comes out."""
        return 3 * (self.height * self.width * self.most_tiles or self.max_pixels)

    def among(self, num_pictures: int) -> PictureShape:
        """Return how each of a prompt's pictures is prepared."""
        alone = num_pictures == 1 or not self.cut_alone
        return self if alone else replace(self, cut="square")


@dataclass(frozen=True, slots=True)
class Writing:
    """The tokens and text of a picture in a prompt.

    Attributes:
        mark_id: The token that a chat template writes for it.
        row_id: The token that stands for each of its rows.
        before, after: Tokens around the rows; with these they take the place of the mark.
        text_before, text_after: Text around the mark, which is tokenized with what the template
            writes there.
        names_tiles: Whether the picture is written as in Idefics3: each tile after its row and
            column, then the whole.
    """

    mark_id: int
    row_id: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    text_before: str = ""
    text_after: str = ""
    names_tiles: bool = False


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """A picture encoder and what leads from it to the decoder's width.

    Attributes:
        kind: Kind of the encoder: ``clip`` (a class token, and a norm before the layers),
            ``siglip``, or ``qwen`` (rotary positions, pictures of any size).
        hidden_size: Width of the encoder's rows.
        num_layers: Number of layers up to the one that features come out of.
        num_heads: Number of heads of its attention.
        intermediate_size: Width of its MLP.
        image_size, patch_size: Edges of the picture and of a patch, in pixels.
        activation: Activation of its MLP: ``quick_gelu``, ``gelu`` or ``gelu_tanh``.
        norm_eps: Term added inside the norms' root.
        num_stored_layers: Number of layers of the checkpoint.
        writing: The tokens and text of pictures in prompts.
        input: The preparation of pictures.
        last_norm: Whether features are normed after the layers.
        drops_class_token: Whether features are those of patches alone.
        projector: Kind of the projector. ``mlp``: two matrices; ``pooled``: a mean of ``merge`` x
            ``merge`` patches, a norm and a matrix (Gemma 3); ``merged``: a norm, and two matrices
            of ``merge`` x ``merge`` patches together (Qwen2-VL); ``shuffled``: one matrix of these
            (Idefics3).
        projector_activation: Activation between the matrices of ``mlp``.
        projector_bias: Whether these have one.
        merge: Edge of the squares of patches that become a row, in patches.
        gated_mlp, rms_norm: Whether layers of ``qwen`` have a gated MLP and RMS norms (Qwen2.5-VL).
        window_size: Edge of the squares within which patches see one another, in pixels; 0 for all.
        full_layers: Layers in which they see all of the picture, by number; where it is 0 all do.
        joins_tiles: Whether the tiles of a picture, which are a ``grid``, become one again, each of
            whose rows ends with a learned one.
        most_squares: Number of tiles' worth of rows that the joined tiles have, at most, about; 0
            for any.
        has_grid: Whether rows have positions of their own in the decoder, by row and column.
        sees_ahead: Whether rows of a picture see all rows of it in the decoder, those after them,
            too.
    """

    kind: str
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    image_size: int
    patch_size: int
    activation: str
    norm_eps: float
    num_stored_layers: int
    writing: Writing
    input: PictureShape
    last_norm: bool = False
    drops_class_token: bool = False
    projector: str = "mlp"
    projector_activation: str = "gelu"
    projector_bias: bool = True
    merge: int = 1
    gated_mlp: bool = False
    rms_norm: bool = False
    window_size: int = 0
    full_layers: tuple[int, ...] = ()
    joins_tiles: bool = False
    most_squares: int = 0
    has_grid: bool = False
    sees_ahead: bool = False

    @property
    def has_class_token(self) -> bool:
        """Whether a learned row stands before those of the patches."""
        return self.kind == "clip"

    @property
    def num_patches(self) -> int:
        """Number of patches of a picture."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def least_tokens(self) -> int:
        """Rows of the smallest picture."""
        if not self.input.multiple:
            return self.num_tokens(self.image_size, self.image_size)
        return -(-self.input.min_pixels // (self.patch_size * self.merge) ** 2)

    @property
    def most_patches(self) -> int:
        """Patches of the largest picture that is encoded as one."""
        if self.input.multiple:
            return self.input.max_pixels // self.patch_size**2
        return self.num_patches * (self.input.most_tiles if self.joins_tiles else 1)

    @property
    def most_tokens(self) -> int:
        """Rows of the largest picture that is encoded as one; of joined tiles some more."""
        if self.input.multiple:
            return self.input.max_pixels // (self.patch_size * self.merge) ** 2
        if not self.joins_tiles:
            return self.least_tokens
        edge = self.image_size // self.patch_size
        tiles: float = self.input.most_tiles - 1
        if self.most_squares:
            tiles = min(tiles, TOLERANCE**2 * self.most_squares)
        lines = edge * max(height // self.image_size for height, _ in self.input.grids)
        return edge**2 + math.ceil(tiles * edge**2) + lines

    def num_tokens(self, height: int, width: int) -> int:
        """Return how many rows a prepared picture has, whose edges are given in pixels."""
        edge = self.patch_size * self.merge
        class_token = self.has_class_token and not self.drops_class_token
        return (height // edge) * (width // edge) + class_token

    def tiling(self, tiles: tuple[int, int], height: int, width: int) -> Tiling | None:
        """Return how a picture's tiles are joined, if they are.

        Args:
            tiles: Number of tiles in a column and in a row; 0 where there is the whole alone.
            height, width: Height and width of the picture before it was prepared, in pixels.
        """
        if not self.joins_tiles:
            return None
        return Tiling.of(
            tiles, self.image_size // self.patch_size, (height, width), self.most_squares
        )

    def grid(self, height: int, width: int) -> tuple[int, int] | None:
        """Return the rows and columns that a prepared picture has positions by, or None."""
        edge = self.patch_size * self.merge
        return (height // edge, width // edge) if self.has_grid else None
