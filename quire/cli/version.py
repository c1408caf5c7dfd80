"""The exact build that is running: version, commit and instruction set."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

import quire
from quire.core.errors import QuireError


def commit() -> str | None:
    """Return the short commit id when Quire runs from its repository, else None."""
    root = Path(quire.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        result = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def native_isa() -> str:
    """Return the instruction set the native kernels use, or why there are none."""
    try:
        from quire.kernels.cpu.native import native
    except QuireError as error:
        return f"no native kernels: {error}"
    return str(native.isa())


def version_line() -> str:
    """Return the line of ``quire --version``."""
    known = commit()
    return f"quire {quire.__version__}" + (f" ({known})" if known else "") + f", {native_isa()}"


@click.command()
def version() -> None:
    """Print version, commit and instruction set."""
    click.echo(version_line())
