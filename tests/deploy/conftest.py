"""A running server's metrics."""

from __future__ import annotations

from collections import defaultdict

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.llm.process.proxy import EngineProxy
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.conftest import run_in_thread
from tools.random_checkpoint import PRESETS, random_checkpoint


@pytest.fixture(scope="session")
def series(tmp_path_factory, device):
    """Return each metric's series as labels, of a supervised engine that has answered."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(folder, PRESETS["tiny-llama"])
    keywords = {"device": device, "memory": 64 * 2**20, "max_num_seqs": 4, "threads": 1}
    config = EngineConfig.from_keywords(model=str(folder), **keywords)
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    service = Service(EngineProxy(config), config, Shared(options))
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).is_success
        text = client.get("/metrics").text
    found = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append(sample.labels)
    return found
