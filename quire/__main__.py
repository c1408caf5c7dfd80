"""``python -m quire`` is the ``quire`` command."""

from quire.cli.main import main

if __name__ == "__main__":
    main()
