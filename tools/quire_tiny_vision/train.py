"""Train the encoder by what each of its cells shows, then encoder and decoder by answers.

Usage: ``python -m tools.quire_tiny_vision.train --work DIR``. Checkpoints go to ``DIR/vision.pt``,
from where an interrupted run goes on with ``--resume``. The steps are the budget, and each batch
follows from its number.
"""

from __future__ import annotations

import argparse
import math
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration

from quire.training.muon import PRECISION, Muon
from tools.quire_tiny_vision.batches import Batch, batches, make_blind_batch
from tools.quire_tiny_vision.model import IMAGE_ID, ChatTokens, model_config
from tools.quire_tiny_vision.scenes import CELL_COLOURS, KINDS
from tools.quire_tiny_vision.start import start

MUON_LR, ADAM_LR, WARMUP_STEPS = 0.015, 2e-3, 30
#: The encoder's own training ends with this share of its learning rates, and then goes on with it.
LEAST_LR = 0.3
#: Of the loss of cells while answers are trained.
CELL_WEIGHT = 0.3
BLIND_EVERY, BLIND_WEIGHT = 40, 0.1
PRINT_EVERY, SAVE_EVERY = 20, 100
#: Of a batch, one for each thread.
PARTS = 2


class Trained(nn.Module):
    """The model, and heads that are left out of what is kept: they tell what a cell shows."""

    def __init__(self) -> None:
        super().__init__()
        self.llava = LlavaForConditionalGeneration(model_config())
        # On a CPU the gradients of the fused one take twice the time.
        self.llava.set_attn_implementation("eager")
        width = self.llava.config.text_config.hidden_size
        self.kinds = nn.Linear(width, len(KINDS))
        self.colours = nn.Linear(width, len(CELL_COLOURS))
        start(self.llava)

    def rows(self, pixels: Tensor) -> Tensor:
        """Return what the decoder gets of pictures, (B, cells, D)."""
        found = self.llava.model.get_image_features(pixel_values=pixels)
        return torch.stack(list(found.pooler_output))

    def cell_loss(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return how badly rows tell what their cells show."""
        kinds, colours = self.kinds(rows), self.colours(rows)
        return _cross_entropy(kinds.mT, labels[:, 0]) + _cross_entropy(colours.mT, labels[:, 1])

    def answer_loss(
        self, rows: Tensor | None, ids: Tensor, positions: Tensor, visible: Tensor, said: Tensor
    ) -> Tensor:
        """Return the cross entropy of what is to be said."""
        embedded = self.llava.get_input_embeddings()(ids)
        if rows is not None:
            places = (ids == IMAGE_ID)[..., None]
            embedded = embedded.masked_scatter(places, rows.to(embedded.dtype))
        bias = torch.zeros(visible.shape, dtype=PRECISION).masked_fill(~visible, -10000.0)
        hidden = self.llava.model.language_model(
            inputs_embeds=embedded, attention_mask=bias, position_ids=positions, use_cache=False
        ).last_hidden_state
        logits = self.llava.lm_head(hidden[:, :-1][said[:, 1:]])
        return functional.cross_entropy(logits.float(), ids[:, 1:][said[:, 1:]])


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), labels, ignore_index=-100)


def optimizers_of(model: Trained, encoder_share: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of layers and AdamW for the rest.

    Args:
        model: Whose parameters they change.
        encoder_share: Factor of the encoder's learning rates.
    """
    kinds: list[tuple[list, list]] = [([], []), ([], [])]
    for name, parameter in model.named_parameters():
        is_matrix = ".layers." in name and parameter.ndim == 2
        kinds[is_matrix]["vision_tower" in name].append(parameter)
    (rest, of_encoder), matrices = kinds
    adam = torch.optim.AdamW(rest, ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    adam.add_param_group({"params": of_encoder, "lr": ADAM_LR * encoder_share})
    muon = Muon(matrices[0], MUON_LR)
    muon.add_param_group({"params": matrices[1], "lr": MUON_LR * encoder_share})
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return [muon, adam]


def scale_at(step: int, cell_steps: int, steps: int) -> float:
    """Return the factor of the learning rates: a cosine for each of the two parts."""
    first, number = (0, cell_steps) if step < cell_steps else (cell_steps, steps)
    least = LEAST_LR if step < cell_steps else 0.0
    fall = 0.5 + 0.5 * math.cos(math.pi * (step - first) / number)
    return min(1.0, (step - first + 1) / WARMUP_STEPS) * (least + (1 - least) * fall)


def gradients(model: Trained, with_blind: ChatTokens | None, batch: Batch) -> tuple[Tensor, list]:
    """Return the losses of cells and answers, and the gradients of their sum."""
    cells, answers = loss_of(model, batch)
    loss = answers + CELL_WEIGHT * cells if batch.ids.numel() else cells
    if with_blind is not None:
        loss = loss + BLIND_WEIGHT * blind_loss(model, with_blind)
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.stack([cells, answers]).detach(), list(grads)


def train_step(
    pool: ThreadPoolExecutor, model: Trained, parts: list[Batch], with_blind: ChatTokens | None
) -> Tensor:
    """Give parameters their gradients of the parts, a thread each, and return the mean losses.

    They are added in the parts' order, so that a run can be repeated.
    """
    losses = torch.zeros(2)
    for found, grads in pool.map(partial(gradients, model, with_blind), parts):
        losses += found / len(parts)
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            if grad is not None:
                share = grad / len(parts)
                parameter.grad = share if parameter.grad is None else parameter.grad.add_(share)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return losses


def loss_of(model: Trained, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of cells and, if there are chats, of answers."""
    with torch.autocast("cpu", dtype=PRECISION, enabled=torch.bfloat16 == PRECISION):
        rows = model.rows(batch.pixels)
        cells = model.cell_loss(rows, batch.labels)
        if not batch.ids.numel():
            return cells, torch.zeros(())
        return cells, model.answer_loss(
            rows, batch.ids, batch.positions, batch.visible(), batch.said
        )


def blind_loss(model: Trained, chat: ChatTokens) -> Tensor:
    """Return the loss of the answers to chats without a picture."""
    ids, positions, parts, said = make_blind_batch(chat)
    empty = torch.empty(0)
    visible = Batch(empty, empty, ids, positions, parts, said).visible()
    with torch.autocast("cpu", dtype=PRECISION, enabled=torch.bfloat16 == PRECISION):
        return model.answer_loss(None, ids, positions, visible, said)


def train(args: argparse.Namespace) -> None:
    """Train for the steps that were asked for."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(PARTS, initializer=torch.set_num_threads, initargs=(1,))
    model, chat, path = Trained(), ChatTokens(), args.work / "vision.pt"
    step = 0
    if args.resume:
        state = torch.load(path)
        step = state["step"]
        model.load_state_dict(state["model"])
    last = args.cell_steps + args.steps
    seen, started = torch.zeros(2), time.monotonic()
    for with_chats, end in ((False, args.cell_steps), (True, last)):
        size = args.batch if with_chats else 2 * args.batch
        numbers = range(step, max(step, end))
        optimizers = optimizers_of(model, LEAST_LR if with_chats else 1.0)
        if args.resume and state["step"] == step != args.cell_steps:
            for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        for batch in batches(args.seed, numbers, size, with_chats=with_chats):
            blind = chat if with_chats and step % BLIND_EVERY == 0 else None
            losses = train_step(pool, model, batch.split(PARTS), blind)
            factor = scale_at(step, args.cell_steps, args.steps)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["base_lr"] * factor
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            step += 1
            seen += losses / PRINT_EVERY
            if step % PRINT_EVERY == 0:
                spent = time.monotonic() - started
                print(
                    f"{spent:6.0f} s  step {step}  cells {seen[0]:.4f}  answers {seen[1]:.4f}",
                    flush=True,
                )
                seen.zero_()
            if step % SAVE_EVERY == 0 or step == last:
                _save(path, model, optimizers, step)


def _save(path: Path, model: Trained, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "step": step,
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cell-steps", type=int, default=900)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
