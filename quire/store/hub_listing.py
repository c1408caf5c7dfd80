"""The hub's description of a repository, within bounds of bytes, time and files.

The hub library reads such an answer whole, however long it is and however slowly it arrives.
"""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

from quire.core.errors import ModelLoadError
from quire.store.hub_download import TIMEOUT

#: Of a listing: bytes, seconds until all have arrived, and files. Published repositories of models
#: have a few hundred files.
MAX_BYTES, MAX_SECONDS, MAX_FILES = 32 * 2**20, 60.0, 20_000


def fetch_listing(repository: str, revision: str | None) -> dict[str, Any]:
    """Return the hub's description of a repository, with its files as ``siblings``.

    Raises:
        ModelLoadError: The answer is beyond the bounds, or not a description.
        Exception: Errors of the hub library, where the hub refuses or cannot be reached.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
        validate_repo_id,
    )

    validate_repo_id(repository)
    where = f"{constants.ENDPOINT}/api/models/{repository}"
    url = where if revision is None else f"{where}/revision/{quote(revision, safe='')}"
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    end, data = time.monotonic() + MAX_SECONDS, bytearray()
    with get_session().stream(
        "GET", url, headers=headers, params={"blobs": True}, timeout=TIMEOUT
    ) as response:
        hf_raise_for_status(response)
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > MAX_BYTES:
                raise _refused(repository, f"have <= {MAX_BYTES >> 20} MiB", "more")
            if time.monotonic() > end:
                raise _refused(repository, f"come within {MAX_SECONDS:g} s", f"{len(data)} bytes")
    try:
        found = json.loads(data)
        files = found["siblings"] or []
        names = [file["rfilename"] for file in files]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise _refused(repository, "be JSON with siblings", "something else") from None
    if len(files) > MAX_FILES or not all(isinstance(name, str) for name in names):
        raise _refused(repository, f"name <= {MAX_FILES:,} files", f"{len(files):,}")
    return {**found, "siblings": files}


def _refused(repository: str, rule: str, got: str) -> ModelLoadError:
    return ModelLoadError(
        f"[pull] the hub's list of the files of {repository} must {rule}; got {got}. Check "
        "HF_ENDPOINT."
    )
