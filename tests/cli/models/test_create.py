"""``quire create``: files of strangers, read within bounds."""

import pytest
from click.testing import CliRunner

from quire.cli.models.create import create
from quire.system.regular_files import SETTINGS_BYTES


@pytest.mark.parametrize("flag", ["--template", "--file"])
def test_a_file_without_bounds_was_read_whole(flag, tmp_path, monkeypatch):
    """A template was read to its end, whatever its size, and a device for ever."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(SETTINGS_BYTES + 1)
    base = ["--from", "quire-tiny"] if flag == "--template" else []
    result = CliRunner().invoke(create, ["mine", *base, flag, str(large)])
    assert result.exit_code and "more than 16 MiB" in str(result.exception)
    result = CliRunner().invoke(create, ["mine", *base, flag, "/dev/zero"])
    assert result.exit_code and "no regular file" in str(result.exception)
