"""What a model needs of pictures: how they are prepared, and the encoder's shape; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PictureShape:
    """How a picture of any size becomes one that the encoder takes, and its values.

    Attributes:
        height, width: Of what the encoder is given, in pixels.
        shortest_edge: The picture is made that wide or high at its shorter edge and keeps its
            proportions, and the middle is cut out; None: it is made ``height`` x ``width``.
        resample: Pillow's number of the filter; 3 is bicubic.
        rescale: Multiplies values of 0 to 255.
        mean, std: Of red, green and blue; subtracted then, and divided by.
    """

    height: int
    width: int
    shortest_edge: int | None = None
    resample: int = 3
    rescale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """A picture encoder and what leads from it to the decoder's width.

    Attributes:
        kind: ``clip`` (a class token, and a norm before the layers) or ``siglip``.
        hidden_size: Width of the encoder.
        num_layers: Layers up to the one that features come out of.
        num_heads: Of its attention.
        intermediate_size: Width of its MLP.
        image_size, patch_size: Edges of the picture and of a patch, in pixels.
        activation: Of its MLP: ``quick_gelu``, ``gelu`` or ``gelu_tanh``.
        norm_eps: Added inside the norms' root.
        num_stored_layers: Layers of the checkpoint.
        drops_class_token: Features are those of patches alone.
        projector_activation: Between the two matrices that make features as wide as the decoder.
        projector_bias: Whether these have one.
        token_id: Stands for a picture's rows in a prompt.
        input: How pictures are prepared.
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
    drops_class_token: bool
    projector_activation: str
    projector_bias: bool
    token_id: int
    input: PictureShape

    @property
    def has_class_token(self) -> bool:
        """Whether a learned row stands before those of the patches."""
        return self.kind == "clip"

    @property
    def num_patches(self) -> int:
        """Of a picture."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """Rows that a picture has in a prompt."""
        return self.num_patches + (self.has_class_token and not self.drops_class_token)
