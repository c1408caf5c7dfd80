"""The method that a drafter's checkpoint is for, found by the names of its tensors."""

from __future__ import annotations

from pathlib import Path

from quire.core.speculative_config import MethodName
from quire.models.draft_heads.eagle_layouts import MIX, SPECULATORS_MIX
from quire.models.draft_heads.head_tensors import HeadTensors
from quire.models.draft_heads.medusa import BLOCK
from quire.models.draft_heads.mtp_layouts import find_layouts


def find_method(path: Path) -> MethodName:
    """Return the method of a drafter: published configurations of heads often do not say.

    Args:
        path: A folder or a GGUF file.

    Raises:
        ModelLoadError: The path is a folder without ``config.json`` or safetensors.
    """
    if path.is_file():
        return "draft_model"
    names = HeadTensors(path).names
    modules = {name.rsplit(".", 1)[0] for name in names}
    if "model.norm" in modules:
        return "draft_model"  # a whole model, perhaps with modules for further tokens
    if find_layouts(names):
        return "mtp"
    if any(map(BLOCK.fullmatch, modules)):
        return "medusa"
    if SPECULATORS_MIX in modules:
        return "eagle"
    if MIX not in modules:
        return "draft_model"
    is_fused = any(module.endswith("hidden_norm") for module in modules)
    return "eagle3" if is_fused else "eagle"
