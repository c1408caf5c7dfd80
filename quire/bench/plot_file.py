"""Files of pictures: which can be written, and how; what is drawn is elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is measured.

    Raises:
        ConfigError: matplotlib is not there, the name ends otherwise, or the folder is not there.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("[bench] --plot needs matplotlib. pip install matplotlib") from None
    matplotlib.use("Agg")
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"[bench] --plot must end in {', '.join(SUFFIXES)}; got {path}.")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"[bench] --plot must be writable; got {path}.")


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file and close it.

    Raises:
        ConfigError: The file cannot be written.
    """
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=100)
    except OSError as error:
        raise ConfigError(f"[bench] --plot must be writable; got {error}.") from error
    finally:
        pyplot.close(figure)
