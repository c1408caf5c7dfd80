"""``POST /v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, as vLLM has them."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from quire.core.errors import ModelLoadError
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.http.body import read_fields, read_json
from quire.server.http.http_errors import ApiError


class LoadAdapter(msgspec.Struct, kw_only=True):
    """Body of ``/v1/load_lora_adapter``; ``load_inplace`` replaces one of the same name."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapter(msgspec.Struct, kw_only=True):
    """Body of ``/v1/unload_lora_adapter``; vLLM's number means nothing here."""

    lora_name: str
    lora_int_id: int | None = None


def routes(models: Models) -> list[Route]:
    """Return the routes; where adapters are named at the start alone, they say so."""
    options = models.shared.options

    def check_allowed() -> None:
        if not options.allow_runtime_lora_updating:
            raise ApiError(
                404, "Adapters are named at the start here (--allow-runtime-lora-updating is off)."
            )

    async def load_adapter(request: Request) -> Response:
        check_allowed()
        fields = await read_json(request)
        body, headers = read_fields(fields, LoadAdapter, options.strict_params)
        async with models.lease(None) as service:
            await _load(service, body)
        text = f"Success: LoRA adapter '{body.lora_name}' added successfully."
        return PlainTextResponse(text, headers=headers)

    async def unload_adapter(request: Request) -> Response:
        check_allowed()
        fields = await read_json(request)
        body, headers = read_fields(fields, UnloadAdapter, options.strict_params)
        async with models.lease(None) as service:
            if not service.adapters.remove(body.lora_name):
                raise ApiError(
                    404,
                    f"The lora adapter '{body.lora_name:.200}' cannot be found.",
                    param="lora_name",
                )
        text = f"Success: LoRA adapter '{body.lora_name}' removed successfully."
        return PlainTextResponse(text, headers=headers)

    return [
        Route("/v1/load_lora_adapter", load_adapter, methods=["POST"]),
        Route("/v1/unload_lora_adapter", unload_adapter, methods=["POST"]),
    ]


async def _load(service: Service, body: LoadAdapter) -> None:
    adapters, name = service.adapters, body.lora_name
    if not adapters.may_be(name):
        raise ApiError(
            400,
            "[lora_name] must be a name of letters, digits and ._:/+@- that the model does not "
            f"have; got {name!r:.80}.",
            param="lora_name",
        )
    if name in adapters and not body.load_inplace:
        raise ApiError(
            400,
            f"The lora adapter '{name}' has already been loaded. If you want to load the adapter "
            "in place, set 'load_inplace' to True.",
            param="lora_name",
        )
    if adapters.is_full and name not in adapters:
        raise ApiError(400, "There are as many adapters as may be: unload one.", param="lora_name")
    try:
        found = await asyncio.to_thread(service.engine.read_adapter, name, body.lora_path)
    except ModelLoadError as error:
        raise ApiError(400, str(error), param="lora_path") from error
    adapters.add(found)
