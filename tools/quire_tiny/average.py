"""Pull a fine-tuned checkpoint back towards the folder it began with: the mean of their weights.

Usage: ``python -m tools.quire_tiny.average --base quire/assets/quire-tiny --share 0.75 --work
DIR``. ``DIR/main.pt`` is replaced; its share is ``--share``. What the last run taught mostly stays,
and some of what it cost comes back (Wortsman et al. 2022, "Robust fine-tuning").
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tools.quire_tiny.export import load


def mean(
    new: dict[str, torch.Tensor], base: dict[str, torch.Tensor], share: float
) -> dict[str, torch.Tensor]:
    """Return ``share`` of ``new`` and the rest of ``base``, weight by weight."""
    assert new.keys() == base.keys()
    return {name: base[name].lerp(value, share) for name, value in new.items()}


def main() -> None:
    """Read the command line and replace the checkpoint's weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--share", type=float, required=True)
    args = parser.parse_args()
    path = args.work / "main.pt"
    state = torch.load(path)
    state["model"] = mean(state["model"], load(args.base).state_dict(), args.share)
    torch.save(state, path)


if __name__ == "__main__":
    main()
