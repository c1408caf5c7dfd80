"""One request on its way to the scheduler; what becomes of it there is the engine's."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

from quire.core.adapter_reference import AdapterReference
from quire.core.client import SHARED, Client
from quire.core.model.picture_tiling import Tiling
from quire.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class RangeKey:
    """A key that the KV of positions ``[start, stop)`` depends on besides the tokens (an image)."""

    start: int
    stop: int
    key: str


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Picture:
    """A picture in a prompt, decoded and resized.

    Attributes:
        start: Position of the first of its rows; its tokens there are placeholders.
        num_tokens: Number of rows of the picture.
        key: Name of its content: pictures with equal keys are equal.
        pixels: (height, width, 3) uint8, red, green and blue, row by row.
        height, width: Height and width in pixels.
        grid: Rows and columns that its rows have positions by; None where they count as tokens do.
        sees_ahead: Whether each of its rows sees all of them, so that they are computed in one
            step.
        tiling: The tiling by which its tiles, which are ``pixels`` one above the other, are joined;
            None without.
    """

    start: int
    num_tokens: int
    key: str
    pixels: bytes
    height: int
    width: int
    grid: tuple[int, int] | None = None
    sees_ahead: bool = False
    tiling: Tiling | None = None

    @property
    def range_key(self) -> RangeKey:
        """The key that separates the blocks with its rows."""
        return RangeKey(self.start, self.start + self.num_tokens, f"picture:{self.key}")


@dataclass(frozen=True, slots=True)
class Continuation:
    """The blocks that one request leaves to the next; nothing but the cost depends on it.

    Attributes:
        keeps_blocks: Whether the request's blocks are kept after its end, for requests that
            continue it.
        continues: Id of such a request, whose blocks it begins with where its tokens do. Without
            effect when that one's blocks are gone.
        releases: Ids of such requests that no request continues any more.
    """

    keeps_blocks: bool = False
    continues: str | None = None
    releases: tuple[str, ...] = ()


NO_CONTINUATION = Continuation()


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A caller's request to an engine: one object from the client to the scheduler.

    Nothing in between names its attributes, so a new one is a field here, a caller that sets it and
    the place that uses it.

    Attributes:
        request_id: The request's id, unique among live requests.
        prompt_token_ids: Tokens of the prompt, at least one; the list is never changed.
        params: Sampling settings. With ``n`` > 1 the prompt is computed once and shared.
        prompt: The prompt as text, to be reported back; None when it was given as token ids.
        priority: The request's priority, lower first, under the ``priority`` policy; see
            :data:`~quire.engine.scheduling.request_queue.AGEING_SECONDS`. Within 32 bits.
        extra_keys: Keys that separate its prefix cache from others' besides the tokens, such as
            ``("salt:...", "adapter:...")``.
        range_keys: Keys that separate the blocks of certain positions, and those after them, from
            others.
        pictures: Pictures of the prompt, in the order of their positions.
        second_text: Position at which the second of two texts begins, for an encoder that tells
            them apart by its token types.
        deadline: Time at which it ends with ``timeout``, in whatever state; in seconds on the
            monotonic clock, which processes share.
        client: The client that it runs for. Clients that compete are served alike, by their
            weights; see :mod:`quire.engine.scheduling.fair_queue`.
        speculative_method: The method that its tokens are proposed by; only where their origins are
            reported.
        continuation: The blocks that it takes from another request, and leaves to others.
        arrival_time: Time of its arrival on the same clock; None means when the engine gets it.
        adapter: The adapter that is added to the model for its tokens; the adapter's ``cache_keys``
            are among ``extra_keys``.
        push_to: Number of the engine that its full blocks are sent to, where engines have roles.
        is_whole: Whether the client sees nothing of the answer before the end.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    _: KW_ONLY
    prompt: str | None = None
    priority: int = 0
    extra_keys: tuple[str, ...] = ()
    range_keys: tuple[RangeKey, ...] = ()
    pictures: tuple[Picture, ...] = ()
    second_text: int | None = None
    deadline: float | None = None
    client: Client = SHARED
    speculative_method: str | None = None
    continuation: Continuation = NO_CONTINUATION
    arrival_time: float | None = None
    adapter: AdapterReference | None = None
    push_to: int | None = None
    is_whole: bool = False

    def with_adapter(self, adapter: AdapterReference) -> EngineRequest:
        """Return the request with an adapter, and cached blocks of that one's requests alone."""
        keys = (*self.extra_keys, *adapter.cache_keys)
        return replace(self, adapter=adapter, extra_keys=keys)

    def for_prompt_alone(self, params: SamplingParams, push_to: int) -> EngineRequest:
        """Return the request of another engine that computes the prompt and sends its blocks."""
        return replace(
            self,
            request_id=f"{self.request_id}:prompt",
            params=params,
            prompt=None,
            continuation=NO_CONTINUATION,
            push_to=push_to,
        )

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Keys of which only requests with the same ones may learn from each other's tokens."""
        return self.extra_keys + tuple(part.key for part in self.ranges)

    @property
    def ranges(self) -> tuple[RangeKey, ...]:
        """The range keys, those of pictures included."""
        return self.range_keys + tuple(picture.range_key for picture in self.pictures)


def salt_keys(cache_salt: str | None) -> tuple[str, ...]:
    """Return the ``extra_keys`` by which only requests with the same salt share cached blocks."""
    return () if cache_salt is None else (f"salt:{cache_salt}",)
