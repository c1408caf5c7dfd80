"""Times every call of the native module from outside, by the name of the function."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from quire import _native


class Stopwatch:
    """Sums the seconds spent inside native functions; methods are called ``Class.method``."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls = 0

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with its time added to the sum of ``name``."""

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds[name] += time.perf_counter() - start
                self.calls += 1

        return timed

    def install(self) -> None:
        """Wrap all functions of the native module and all methods of its classes."""
        for name, value in vars(_native).copy().items():
            if inspect.isclass(value):
                for method, code in vars(value).copy().items():
                    if callable(code) and not method.startswith("__"):
                        # An instance method must stay one: a plain function binds like it.
                        setattr(value, method, self.wrap(f"{name}.{method}", code))
            elif callable(value) and not name.startswith("__"):
                setattr(_native, name, self.wrap(name, value))
