"""Signals that end ``quire top``, wherever they meet it."""

from __future__ import annotations

import os
import signal

import pytest

from quire.cli.top.terminal import signals_noted


class _Signals:
    """Has a signal come while it is finalized."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.filterwarnings("error")
def test_a_signal_that_meets_a_finalizer_is_noted(number: int) -> None:
    before = signal.getsignal(number)
    with signals_noted() as ended:
        assert ended.exit_code is None
        _Signals(number)
        assert ended.exit_code == 128 + number
    assert signal.getsignal(number) is before
