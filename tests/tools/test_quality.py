"""What ``scripts/bench quality`` is told to measure, before it takes minutes to measure it."""

from __future__ import annotations

import pytest

from benchmarks.quality import shapes_of


def test_files_belong_to_the_folder_before_them(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for folder, file in zip(folders, files, strict=True):
        folder.mkdir()
        file.write_bytes(b"GGUF")
    assert shapes_of([folders[0], files[0], files[1], folders[1]]) == {
        folders[0]: files,
        folders[1]: [],
    }
    (tmp_path / "text").write_text("text")
    for paths in ([files[0]], [tmp_path / "nowhere"], [folders[0], tmp_path / "text"]):
        with pytest.raises(ValueError, match="must be a folder, or a GGUF file after its folder"):
            shapes_of(paths)
