"""A checkpoint as transformers' model, and its linears by the checkpoint's names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from quire.core.errors import ConfigError, ModelLoadError, UnsupportedArchitectureError


def load_causal_model(folder: Path, device: str = "cpu") -> torch.nn.Module:
    """Return the model in float32, with nothing to be trained.

    Code that a checkpoint brings is not run, and nothing is fetched.

    Raises:
        ConfigError: The device does not exist.
        ModelLoadError: transformers does not load it.
    """
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"[finetune] --device must be there; got {device}, which is not.")
    try:
        model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelLoadError(
            f"[finetune] transformers must load SOURCE; got {reason[0]} Use another model."
        ) from error
    model.requires_grad_(False)
    return model.to(device)


def find_linears(model: torch.nn.Module, modules: Sequence[str]) -> dict[str, str]:
    """Return where the model has matrices of a checkpoint, by their names there.

    Raises:
        UnsupportedArchitectureError: A matrix is not a linear of its own, as with experts that are
            held together.
    """
    prefix = getattr(model, "base_model_prefix", "")
    places: dict[str, str] = {}
    held = dict(model.named_modules())
    for module in modules:
        found = next((name for name in (module, f"{prefix}.{module}") if name in held), "")
        if not isinstance(held[found], torch.nn.Linear):
            raise UnsupportedArchitectureError(
                f"[finetune] each matrix must be a linear of transformers' {type(model).__name__}; "
                f"got {module}, which is not one. Use a model without experts."
            )
        places[module] = found
    return places
