"""The GGUF file of a random model: written once for all tests that read it."""

from __future__ import annotations

from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.models.gguf.gguf_export import GgufExport


class SavedFiles:
    """Gives the float32 file of (family, settings), each made once."""

    def __init__(self, saved_oracle, tmp_path_factory):
        self._saved, self._folders, self._made = saved_oracle, tmp_path_factory, {}

    def __call__(self, family, settings):
        key = repr((family, settings))
        if key not in self._made:
            exported = GgufExport(self._saved(family, settings)[1], "F32")
            self._made[key] = path = self._folders.mktemp("gguf") / "model.gguf"
            # For programs that read no file without a tokenizer.
            metadata = exported.metadata | {"tokenizer.ggml.model": "none"}
            write_gguf(path, metadata, exported.tensors)
        return self._made[key]
