"""Where the clients find a server; ``scripts/test_clients`` starts one and brings the packages."""

from __future__ import annotations

import os

import pytest

# Neither a tracing service nor a price list is asked for over the network.
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

NEEDED = "needs the packages and the server of scripts/test_clients"


@pytest.fixture(scope="session")
def server_url() -> str:
    """``http://...``, without a path."""
    url = os.environ.get("QUIRE_CLIENTS_URL")
    if url is None:
        pytest.skip(NEEDED)
    return url


@pytest.fixture(scope="session")
def base_url(server_url) -> str:
    """``http://.../v1``."""
    return f"{server_url}/v1"


@pytest.fixture(scope="session")
def pictures_url(server_url) -> str:
    """``http://.../v1`` of a server whose model ``llava`` takes pictures."""
    return f"{os.environ['QUIRE_CLIENTS_PICTURES_URL']}/v1"


@pytest.fixture(scope="session")
def key() -> str:
    """Of that server."""
    return os.environ["QUIRE_CLIENTS_KEY"]
