"""The client that a request runs for, as far as scheduling needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Client:
    """A client that shares the engine with others.

    Attributes:
        client_id: Name of the client; requests with the same name share one part. No secret.
        weight: The client's part, in relation to others'; above 0.
        place: Number of requests of the same call before this one: the client's other calls take
            turns with those of a call that makes many.
    """

    client_id: str = ""
    weight: float = 1.0
    place: int = field(default=0, compare=False)


#: The client of all requests that name none.
SHARED = Client()
