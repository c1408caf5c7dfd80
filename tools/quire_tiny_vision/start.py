"""The weights before the training: the encoder's heads look at neighbours, as a convolution does.

A transformer that is begun at random first has to learn which cells are neighbours, from many times
the pictures that are drawn here. Some of the width holds where a cell is, as sines and cosines of
its row and column, and nothing of the picture. A query is turned by an angle for each wave, so that
it fits the key of the cell that lies in the head's direction. All of it is trained.

Source: d'Ascoli et al. 2021 (ConViT), with these waves in place of its relative positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration

from tools.quire_tiny_vision.model import CELLS, PATCH

#: A row or column has this many waves, of half a turn over the picture and its multiples.
WAVES = 4
RATES = math.pi / CELLS * torch.arange(1, WAVES + 1)
PLACE_WIDTH = 4 * WAVES
#: Where a layer's heads look, in cells: of each layer the distance, of each head the direction.
DISTANCES = (1, 1, 2, 2)
DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))
#: Grey, red against green, blue against yellow; how many waves of each a patch is told in.
COLOUR_AXES = ((0.6, 0.6, 0.6), (1.0, -1.0, 0.0), (0.5, 0.5, -1.0))
COSINES = (48, 32, 32)
#: How much more a head looks there than at the cells next to that.
SHARPNESS = 2.0
#: Endings of the names of matrices whose results are added to the residual stream.
OUTPUTS = ("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")


@torch.no_grad()
def start(model: LlavaForConditionalGeneration) -> None:
    """Draw all weights and set those that say where cells are and where heads look."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02 if name.endswith(OUTPUTS) else 0.05)
    tower = model.model.vision_tower
    embeddings = tower.embeddings
    embeddings.patch_embedding.weight[:PLACE_WIDTH] = 0.0
    embeddings.patch_embedding.weight[PLACE_WIDTH:] = _waves_of_patches()
    embeddings.position_embedding.weight[:, PLACE_WIDTH:] = 0.0
    embeddings.position_embedding.weight[:, :PLACE_WIDTH] = _places()
    for layer, distance in zip(tower.encoder.layers, DISTANCES, strict=True):
        attention = layer.self_attn
        for number, (down, across) in enumerate(DIRECTIONS):
            head = slice(number * PLACE_WIDTH, (number + 1) * PLACE_WIDTH)
            attention.q_proj.weight[head] = 0.0
            attention.k_proj.weight[head] = 0.0
            turn = _turn(down * distance, across * distance)
            attention.q_proj.weight[head, :PLACE_WIDTH] = SHARPNESS * turn
            attention.k_proj.weight[head, :PLACE_WIDTH] = SHARPNESS * torch.eye(PLACE_WIDTH)


def _waves_of_patches() -> Tensor:
    """Return (width left, 3, PATCH, PATCH): the slowest cosines of grey and of two differences.

    Random ones tell above all how bright a patch is, and next to nothing of the edges in it.
    """
    steps = torch.arange(PATCH)
    waves = torch.cos(math.pi / PATCH * (steps + 0.5) * steps[:, None])
    speeds = (steps[:, None] + steps).reshape(-1)
    order = speeds.argsort(stable=True)
    made = []
    for colour, number in zip(COLOUR_AXES, COSINES, strict=True):
        for index in order[:number].tolist():
            wave = torch.outer(waves[index // PATCH], waves[index % PATCH])
            scale = (0.25 + speeds[index]) / 2.0
            made.append(scale / PATCH * torch.tensor(colour)[:, None, None] * wave)
    return torch.stack(made)


def _places() -> Tensor:
    """Return (cells, PLACE_WIDTH): sines and cosines of the row, then of the column."""
    angles = torch.arange(CELLS)[:, None] * RATES
    line = torch.cat([angles.sin(), angles.cos()], 1)
    rows = line[:, None].expand(CELLS, CELLS, -1)
    columns = line[None].expand(CELLS, CELLS, -1)
    return torch.cat([rows, columns], 2).reshape(CELLS * CELLS, -1)


def _turn(down: int, across: int) -> Tensor:
    """Return the matrix that makes a cell's place that of the cell so far from it."""
    parts = []
    for steps in (down, across):
        sine, cosine = torch.diag((steps * RATES).sin()), torch.diag((steps * RATES).cos())
        parts.append(torch.cat([torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)]))
    return torch.block_diag(*parts)
