"""One line in the log per request: ids, counts and timings; never text, keys or queries."""

from __future__ import annotations

from typing import Any

from quire.server.observability.request_record import RequestRecord
from quire.server.server_options import ServerOptions
from quire.system.log import get_logger

log = get_logger(__name__)

#: Asked several times a second while an answer streams to the page; only refusals are told.
QUIET = frozenset({"/playground/render"})


class RequestLog:
    """Writes the lines.

    Args:
        options: The server's settings, which say which requests are logged.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._generations = not options.disable_log_requests
        self._others = not options.disable_uvicorn_access_log

    def __call__(self, record: RequestRecord) -> None:
        """Write the line of a request that has ended."""
        if record.handler in QUIET and record.status == 200:
            return
        if self._generations if record.generations else self._others:
            log.info("request", extra={"fields": fields(record)})


def fields(record: RequestRecord) -> dict[str, Any]:
    """Return what the line says, by name; times in seconds."""
    found: dict[str, Any] = {
        "request_id": record.request_id,
        "client": record.client,
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "seconds": round(record.seconds, 6),
    }
    if not record.generations:
        return found
    times = [g.times for g in record.generations if g.times is not None]
    found |= {
        "api_key": record.api_key,
        "model": record.model,
        "stream": record.streamed,
        "prompts": len(record.generations),
        "prompt_tokens": sum(g.num_prompt_tokens for g in record.generations),
        "cached_tokens": sum(g.num_cached_tokens for g in record.generations),
        "completion_tokens": sum(g.num_output_tokens for g in record.generations),
        "finish_reasons": [reason for g in record.generations for reason in g.finish_reasons],
        "preemptions": sum(part.num_preemptions for part in times),
    }
    times = [part for part in times if part.first_token_time]
    if times:
        arrival = min(part.arrival_time for part in times)
        first = min(part.first_token_time for part in times)
        scheduled = min(part.first_scheduled_time for part in times)
        last = max(part.last_token_time for part in times)
        for name, seconds in (
            ("queue_seconds", scheduled - arrival),
            ("first_token_seconds", first - arrival),
            ("decode_seconds", last - first),
        ):
            found[name] = round(seconds, 6)
    return {name: value for name, value in found.items() if value is not None}
