"""The manifests of ``deploy/kubernetes``: of one piece, with command lines that are understood."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from quire.cli.serve import serve
from quire.server.openai.openapi import OPERATIONS
from quire.server.server_options import ServerOptions

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
FILES = {path.stem: list(yaml.safe_load_all(path.read_text())) for path in FOLDER.glob("*.yaml")}
#: What the operator puts into the pods of a group of two.
LWS = {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "quire-0.quire"}


def find(file: str, kind: str, name: str = "quire") -> dict[str, Any]:
    (one,) = [d for d in FILES[file] if d["kind"] == kind and d["metadata"]["name"] == name]
    return one


def command_lines() -> Iterator[Any]:
    """Give the arguments after ``quire serve`` that each pod runs, and its number."""
    spec = find("leader_worker_set", "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert str(spec["size"]) == LWS["LWS_GROUP_SIZE"]
    for number, role in enumerate(("leader", "worker")):
        (container,) = spec[f"{role}Template"]["spec"]["containers"]
        arguments = container["args"]
        for variable, value in (*LWS.items(), ("LWS_WORKER_INDEX", str(number))):
            arguments = [word.replace(f"$({variable})", value) for word in arguments]
        assert arguments.pop(0) == "serve"
        yield pytest.param(arguments, number, id=f"leader_worker_set-{role}")
    spec = find("stateful_set", "StatefulSet")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    for number in range(spec["replicas"]):
        script = container["command"][-1].replace("exec quire", "echo")
        done = subprocess.run(
            ["sh", "-c", script],
            env=os.environ | {"NODE_RANK": str(number)},
            capture_output=True,
            text=True,
            check=True,
        )
        arguments = done.stdout.split()
        assert arguments.pop(0) == "serve"
        yield pytest.param(arguments, number, id=f"stateful_set-{number}")
    (container,) = find("deployment", "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "serve"
    yield pytest.param(container["args"][1:], 0, id="deployment")
    arguments = shlex.split(find("ray_job", "RayJob")["spec"]["entrypoint"])
    assert arguments[:2] == ["quire", "serve"]
    yield pytest.param(arguments[2:], 0, id="ray_job")


@pytest.mark.parametrize(("arguments", "number"), list(command_lines()))
def test_command_lines_are_understood(arguments, number):
    """A pod that serves has no --headless, and the other way round; ranks are as many as pods."""
    assert ("--headless" in arguments) == (number > 0)
    assert ("--host=0.0.0.0" in arguments) == (number == 0)
    known = [word if word != "/models/NAME" else "quire-tiny" for word in arguments]
    result = CliRunner().invoke(serve, [*known, "--dry-run"])
    assert result.exit_code == 0, result.output
    if "--pipeline-parallel-size=2" in arguments:
        assert "stage 1: layers 3 to 5, rank 1" in result.output


def pods() -> Iterator[Any]:
    """Give the pod templates of all manifests."""

    def search(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            if "containers" in part.get("spec", {}):
                yield part
            for value in part.values():
                yield from search(value)
        elif isinstance(part, list):
            for value in part:
                yield from search(value)

    for name, documents in FILES.items():
        for number, pod in enumerate(search(documents)):
            yield pytest.param(pod, id=f"{name}-{number}")


@pytest.mark.parametrize("pod", list(pods()))
def test_pods_are_of_one_piece(pod):
    spec = pod["spec"]
    (container,) = spec["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    assert "memory" in container["resources"]["limits"]
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in ("readinessProbe", "livenessProbe"):
        if "httpGet" in container.get(probe, {}):
            assert container[probe]["httpGet"]["port"] in ports


@pytest.mark.parametrize("file", FILES)
def test_services_find_their_pods(file):
    labels = [p.values[0].get("metadata", {}).get("labels", {}) for p in pods()]
    for document in FILES[file]:
        if document["kind"] == "Service":
            selector = dict(document["spec"]["selector"])
            selector.pop("apps.kubernetes.io/pod-index", None)  # Kubernetes sets it itself
            assert any(selector.items() <= own.items() for own in labels), selector


def test_the_probes_are_routes():
    asked = re.findall(r"/health/\w+", "".join(p.read_text() for p in FOLDER.glob("*.yaml")))
    assert len(asked) >= 6
    assert {("GET", path) for path in asked} <= set(OPERATIONS)


def test_every_pod_that_serves_is_probed():
    """A stateful set had no probes: it got requests before it was loaded, and kept dead pods."""
    serving = [
        container
        for pod in pods()
        for container in pod.values[0]["spec"]["containers"]
        if container.get("ports") and "ray_job" not in str(pod.id)
    ]
    assert len(serving) == 3
    for container in serving:
        assert {"readinessProbe", "livenessProbe"} <= container.keys()


def test_the_deployment_drains_before_it_is_killed():
    spec = find("deployment", "Deployment")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > ServerOptions().shutdown_timeout
    (claim,) = [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]]
    assert find("deployment", "PersistentVolumeClaim", claim)
    scaled = find("deployment", "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert scaled["name"] == find("deployment", "Deployment")["metadata"]["name"]
