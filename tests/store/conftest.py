"""A stand-in for the hub, its caches in empty folders."""

import pytest


@pytest.fixture
def hub_of(tmp_path, monkeypatch):
    """Return a function that makes a stand-in this process's hub, its caches empty folders."""
    from huggingface_hub import constants

    from quire.store import hub_download

    def use(stand_in):
        monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
        template = f"{stand_in.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 60)
        monkeypatch.setattr(hub_download, "RETRY_SECONDS", 0)
        monkeypatch.setattr(hub_download, "LOCK_SECONDS", 0.05)
        monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "quire"))
        monkeypatch.setenv("NO_PROXY", "*")
        return stand_in

    return use
