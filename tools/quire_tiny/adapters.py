"""Train quire-tiny's adapters: LoRA on all linears of its layers, written as PEFT writes it.

Usage: ``python -m tools.quire_tiny.adapters --topic sql --out DIR``. One thread and steps for a
budget: the same machine makes the same weights again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tools.quire_tiny.adapter_topics import TOPICS, draw
from tools.quire_tiny.corpus import render
from tools.quire_tiny.export import load, write_json
from tools.quire_tiny.model import Llama
from tools.quire_tiny.packing import encode, pack
from tools.quire_tiny.question import turn
from tools.quire_tiny.run import attention_bias

BASE = Path("quire/assets/quire-tiny")
RANK, ALPHA = 4, 16
ROW, ROWS = 192, 3
RATE, WARMUP_STEPS = 4e-3, 20
#: quire-tiny has seen Python and facts, and no SQL.
STEPS = {"sql": 450, "code": 160, "pirate": 160}
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LowRank(nn.Module):
    """A weight (outputs, inputs) with ``ALPHA / RANK * B @ A`` added; B begins at 0."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.down = nn.Parameter(torch.empty(RANK, inputs).uniform_(-1, 1) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the changed weight."""
        return weight + ALPHA / RANK * (self.up @ self.down)


def adapt(model: Llama) -> dict[str, LowRank]:
    """Add trainable matrices to a model, the rest of which is frozen; by the module's name."""
    model.requires_grad_(False)
    added = {}
    for name, module in list(model.named_modules()):
        if name.rpartition(".")[2] in TARGETS:
            added[name] = LowRank(module.weight)
            parametrize.register_parametrization(module, "weight", added[name])
    return added


def loss_of(model: Llama, tokenizer: Tokenizer, topic: str, rng: Random, held_out: bool) -> Tensor:
    """Return the mean cross entropy of the answers to questions that fill a step's rows."""
    texts = []
    while len(texts) < ROWS * ROW // 72:
        question = draw(topic, rng, held_out)
        texts.append(render(turn(question.prompt, question.answer)))
    rows = pack(encode(tokenizer, texts), ROW)
    ids, keep = torch.from_numpy(rows.ids), torch.from_numpy(rows.weights)[:, 1:] == 1
    hidden = model.hidden(ids[:, :-1], attention_bias(rows.documents[:, :-1]).float())
    logits = nn.functional.linear(hidden[keep], model.embed_tokens.weight)
    return nn.functional.cross_entropy(logits, ids[:, 1:][keep])


def train(topic: str, steps: int, seed: int) -> dict[str, LowRank]:
    """Return the matrices after some steps."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    model = load(BASE).float()
    added = adapt(model)
    parameters = [parameter for own in added.values() for parameter in own.parameters()]
    optimizer = torch.optim.AdamW(parameters, RATE, betas=(0.9, 0.99), weight_decay=0.0)
    rng = Random(f"adapters/{topic}/{seed}")
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARMUP_STEPS, (steps - step) / (0.6 * steps), 1.0)
        loss = loss_of(model, tokenizer, topic, rng, False)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}  loss {loss:.4f}", flush=True)
    with torch.no_grad():
        held_out = Random(f"adapters/{topic}/held out")
        losses = [float(loss_of(model, tokenizer, topic, held_out, True)) for _ in range(8)]
    print(f"held out: {sum(losses) / len(losses):.4f}")
    return added


def write(added: dict[str, LowRank], out: Path) -> None:
    """Write the folder of an adapter, in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, own in added.items():
        prefix = f"base_model.model.model.{name}"
        tensors[f"{prefix}.lora_A.weight"] = own.down.detach().bfloat16().contiguous()
        tensors[f"{prefix}.lora_B.weight"] = own.up.detach().bfloat16().contiguous()
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    (out / "adapter_model.safetensors").chmod(0o644)
    config = {
        "base_model_name_or_path": "quire-tiny",
        "bias": "none",
        "lora_alpha": ALPHA,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": list(TARGETS),
        "task_type": "CAUSAL_LM",
    }
    write_json(out / "adapter_config.json", config)


def main() -> None:
    """Read the command line and train."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--topic", choices=sorted(TOPICS), required=True)
    arguments.add_argument("--steps", type=int, help="default: what the topic needs")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--out", type=Path, required=True)
    args = arguments.parse_args()
    write(train(args.topic, args.steps or STEPS[args.topic], args.seed), args.out)


if __name__ == "__main__":
    main()
