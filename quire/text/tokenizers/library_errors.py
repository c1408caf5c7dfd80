"""Errors of the ``tokenizers`` library, as the errors that a reader of files handles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire.core.errors import QuireError


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn what the library raises into a ``ValueError`` that says ``what`` it refuses.

    It raises plain ``Exception``, and for some mistakes a panic, which is not even that.
    """
    try:
        yield
    except (QuireError, ValueError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ValueError(f"{what} the tokenizers library refuses ({error})") from error
