"""llama.cpp's converter, from its sources, in this process, which has torch and transformers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

_OWN = ("conversion", "gguf")


@contextmanager
def converter_classes(source: Path) -> Iterator[Any]:
    """Give what returns the converter's class of a folder; no module of it is left at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(source / "gguf-py")
        patch.syspath_prepend(source)
        for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
            patch.delitem(sys.modules, name)
        try:
            conversion = import_module("conversion")

            def class_of(folder: Path) -> Any:
                (name,) = json.loads((folder / "config.json").read_text())["architectures"]
                return conversion.get_model_class(name)

            yield class_of
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
                del sys.modules[name]


def write_with(converter: Any, folder: Path, out: Path, **options: Any) -> None:
    """Have one of its classes write a folder's float32 file."""
    import torch

    file_types = sys.modules["gguf"].LlamaFileType
    with torch.inference_mode():
        converter(folder, file_types.ALL_F32, out, **options).write()
