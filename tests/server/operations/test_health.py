"""What probes see of a working, a stuck, a dead and an ending engine."""

from __future__ import annotations

from quire.llm.engine_client import EngineProgress

PROBES = ("/health", "/ping", "/health/live", "/health/ready")


def statuses(client) -> list[int]:
    return [client.get(path).status_code for path in PROBES]


def test_a_working_engine(client, engine):
    assert statuses(client) == [200] * 4
    engine.state = EngineProgress(3, 0.5, 0.25, 2.0)
    assert statuses(client) == [200] * 4
    assert client.get("/health/progress").json() == {
        "last_step_age_seconds": 0.5,
        "pending": 3,
        "oldest_queue_age_seconds": 2.0,
    }


def test_a_dead_engine_is_alive_as_a_server_but_not_ready(client, engine):
    engine.dead = True
    assert statuses(client) == [503, 503, 200, 503]
    assert client.get("/health/progress").status_code == 200


def test_no_progress_makes_it_unready(serve, engine):
    """It stayed green until the watchdog, two minutes later."""
    client = serve(watchdog_timeout=100.0)
    engine.state = EngineProgress(1, 4.0, 4.0, 4.0)
    assert statuses(client) == [200] * 4
    engine.state = EngineProgress(1, 11.0, 11.0, 11.0)
    assert statuses(client) == [200, 200, 200, 503]
    engine.state = EngineProgress(1, 11.0, 11.0, 11.0, step_seconds=20.0)  # slow, not stuck
    assert statuses(client) == [200] * 4
    engine.state = EngineProgress(1, 101.0, 101.0, 101.0, step_seconds=1000.0)
    assert client.get("/health/ready").status_code == 503
    engine.state = EngineProgress(1, 11.0, 11.0, 11.0)
    assert "No step has ended for 11 s" in client.get("/health/ready").text
    engine.state = EngineProgress(0, 11.0, 0.0, 0.0)  # nothing to do is no standstill
    assert client.get("/health/ready").status_code == 200
