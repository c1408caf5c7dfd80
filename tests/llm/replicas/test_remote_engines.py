"""Engines of other machines at the server's port: those that come, and those that do not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from quire.core.errors import ConfigError, ModelLoadError
from quire.llm.replicas.remote_engines import RemoteEngines, RemoteLauncher
from quire.llm.replicas.shared_settings import shared_settings
from quire.runner.ranks.rendezvous import hello, join
from quire.settings.config import EngineConfig
from tests.ports import free_ports


@pytest.fixture
def config() -> EngineConfig:
    return EngineConfig.from_keywords(data_parallel_size=4, nnodes=2, master_port=free_ports())


@pytest.fixture
def engines(config: EngineConfig) -> RemoteEngines:
    address = config.parallel.master_addr, config.parallel.master_port
    return RemoteEngines(range(2, 4), address, "", shared_settings(config), seconds=60.3)


@pytest.fixture
def launchers(engines: RemoteEngines) -> Iterator[list[RemoteLauncher]]:
    made = list(engines.launchers().values())
    yield made
    for launcher in made:
        launcher.close()


def come(config: EngineConfig, number: int) -> socket.socket:
    address = config.parallel.master_addr, config.parallel.master_port
    return join(address, hello(number, "", "engine", shared_settings(config)), 20.0)


def test_engines_that_do_not_come_are_named(config, engines, launchers):
    with come(config, 2):
        process = launchers[0].launch(lambda: True)
        assert process is not None
        engines._end -= 60  # of the time that the first one had however busy the machine is
        with pytest.raises(ModelLoadError, match=r"within 60.3 s; got none for 3\."):
            launchers[1].launch(lambda: True)
        assert "engine 2 on " in process.ending(at_once=True)


def test_one_that_has_come_once_is_waited_for_as_long_as_it_is_wanted(config, launchers):
    with come(config, 2):
        first = launchers[0].launch(lambda: True)
    assert first is not None
    first.ending(at_once=True)
    looks = iter([True] * 6)
    assert launchers[0].launch(lambda: next(looks, False)) is None
    with come(config, 2) as connection:
        again = launchers[0].launch(lambda: True)
        assert again is not None
        assert again.socket.getpeername() == connection.getsockname()
        again.ending(at_once=True)


def test_the_port_is_closed_when_no_engine_is_wanted_any_more(config, launchers):
    for launcher in launchers:
        launcher.close()
    for thread in threading.enumerate():
        if thread.name == "quire-engines":
            thread.join(20)
    address = config.parallel.master_addr, config.parallel.master_port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_settings_of_one_machine_may_differ_from_those_of_another():
    keywords = {"memory": 2**28, "threads": 2, "served_model_name": ("a",)}
    assert shared_settings(EngineConfig.from_keywords(**keywords)) == shared_settings(
        EngineConfig.from_keywords()
    )


@pytest.mark.parametrize(
    ("keywords", "flag"),
    [
        ({"block_size": 32}, "--block-size"),
        ({"seed": 1}, "--seed"),
        ({"quantization_overrides": "a=int8," * 9 + "b=none"}, "a text of"),
        ({"model": "quire-tiny-draft"}, "the model"),
    ],
)
def test_settings_of_all_are_told_apart(config, launchers, keywords, flag):
    given = {"data_parallel_size": 4, "nnodes": 2, **keywords}
    other = EngineConfig.from_keywords(**given, master_port=config.parallel.master_port)
    with pytest.raises(ConfigError, match=f"{flag}.* on machine 0"):
        come(other, 2)
