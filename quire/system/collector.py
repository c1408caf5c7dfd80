"""Python's collector of reference cycles in a process that serves: seldom, and past what stays."""

from __future__ import annotations

import gc

#: Objects made and not freed between two looks at the youngest. At Python's 700 the collector looks
#: at the objects of a thousand streams again and again, in pauses that all of them see. Cycles are
#: few here, so what waits for it is small.
YOUNG_OBJECTS = 5_000
#: Looks at the youngest between two at all that they have left: with Python's 10 these were 110,000
#: objects once, in pauses of 55 ms.
YOUNG_LOOKS = 2
#: Looks at these between two at all objects but those that were there at the start.
MIDDLE_LOOKS = 100


def collect_seldom() -> None:
    """Look for cycles as often as a server needs, and no more in what is there now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_LOOKS, MIDDLE_LOOKS)
