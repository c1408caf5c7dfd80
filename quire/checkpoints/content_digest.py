"""Digest that tells checkpoints apart wherever they lie, of content samples, not names or times."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from quire.system.regular_files import open_regular

#: Read of each file: its beginning, where shapes stand, and pieces all over it.
HEAD_BYTES = 1 << 20
NUM_SAMPLES, SAMPLE_BYTES = 64, 1 << 14
#: Of a folder, besides the weights.
SMALL_FILES = ("config.json", "tokenizer.json", "tokenizer.model")


def content_digest(folders: Iterable[Path]) -> str:
    """Return a digest of checkpoints (folders or GGUF files) and tokenizers.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for file in _files(folder):
            size = file.stat().st_size
            digest.update(f"{size}\n".encode())
            with open_regular(file) as stream:
                digest.update(stream.read(HEAD_BYTES))
                for number in range(1, NUM_SAMPLES + 1):
                    stream.seek(max(0, size * number // NUM_SAMPLES - SAMPLE_BYTES))
                    digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return [folder]
    small = [folder / name for name in SMALL_FILES]
    return [*filter(Path.is_file, small), *sorted(folder.glob("*.safetensors"))]
