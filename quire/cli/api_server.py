"""``python -m quire.cli.api_server --model M``: ``quire serve`` in the form of older scripts."""

from __future__ import annotations

import sys

from quire.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["serve", *sys.argv[1:]]))
