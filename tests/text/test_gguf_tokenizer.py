"""Tokenizers out of GGUF metadata, against real vocabularies and their recorded tokens."""

from pathlib import Path

VOCABULARIES = Path("/work/shared/data/gguf-vocab")
