"""On whose behalf a request runs, as far as scheduling needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Client:
    """Who shares the engine with others.

    Attributes:
        client_id: Requests with the same one share one part; no secret.
        weight: Its part, in relation to others'; above 0.
        place: Requests of the same call before this one: the client's other calls take turns with
            those of a call that makes many.
    """

    client_id: str = ""
    weight: float = 1.0
    place: int = field(default=0, compare=False)


#: Everybody who is nobody in particular.
SHARED = Client()
