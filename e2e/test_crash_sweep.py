"""The operator is killed at each of its calls to the API server in turn, and the world ends up the same.

The API server runs in this process, so that a wrapper around it can count the operator's requests for one service and
kill the operator with SIGKILL before, or right after, the k-th is answered. No pods run here: what counts is what is
written.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.clusters.cluster import ROOT
from e2e.waiting import eventually
from shoal_local.apiserver.server import Running, make_server

Json = dict[str, Any]
Scope = MutableMapping[str, Any]
CHILDREN = {
    "deployments": "/apis/apps/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
}
SERVICES = "/apis/serving.shoal.dev/v1alpha1"
VOLATILE = {"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences"}
MOST_CALLS = 60


@dataclass
class OperatorKiller:
    """Counts the operator's requests that name one service, and kills it at the chosen one."""

    app: Any
    name: str = ""
    at: int = 0
    after: bool = True
    seen: int = 0
    process: subprocess.Popen[bytes] | None = None
    killed: threading.Event = field(default_factory=threading.Event)

    def targets(self, name: str, at: int, process: subprocess.Popen[bytes], *, after: bool) -> None:
        """Kill ``process`` at its ``at``-th request for service ``name``."""
        self.killed.clear()
        self.name, self.at, self.after, self.seen, self.process = name, at, after, 0, process

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        """Serve (ASGI)."""
        mine = scope["type"] == "http" and self._concerns(scope)
        if mine and not self.after:
            self._kill()
        await self.app(scope, receive, send)
        if mine and self.after:
            self._kill()

    def _concerns(self, scope: Scope) -> bool:
        agent = dict(scope["headers"]).get(b"user-agent", b"")
        if not self.name or agent.startswith(b"e2e"):
            return False
        target = f"{scope['path']}?{scope['query_string'].decode()}"
        if f"/{self.name}" not in target and f"%3D{self.name}" not in target and f"={self.name}" not in target:
            return False
        self.seen += 1
        return self.seen == self.at

    def _kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.killed.set()


class Api:
    """The API server as its administrator sees it."""

    def __init__(self, running: Running) -> None:
        headers = {"authorization": f"Bearer {running.credentials.admin_token}", "user-agent": "e2e"}
        self._http = httpx.Client(base_url=running.url, headers=headers, verify=False, timeout=20, trust_env=False)

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def get(self, path: str) -> Json | None:
        answer = self._http.get(path)
        return None if answer.status_code == 404 else dict(answer.raise_for_status().json())

    def post(self, path: str, body: Json) -> None:
        answer = self._http.post(path, json=body)
        assert answer.status_code == 201, answer.text

    def create(self, name: str) -> None:
        spec = {"model": {"uri": "file:///models/adder"}}
        body = {"apiVersion": "serving.shoal.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": name}}
        self.post(f"{SERVICES}/namespaces/default/inferenceservices", {**body, "spec": spec})

    def world(self, name: str) -> Json:
        """Return what is written for a service: its children and its conditions, without what differs by nature."""
        found = {plural: self.get(f"{root}/namespaces/default/{plural}/{name}") for plural, root in CHILDREN.items()}
        service = self.get(f"{SERVICES}/namespaces/default/inferenceservices/{name}") or {}
        conditions = {
            each["type"]: (each["status"], each["reason"]) for each in service.get("status", {}).get("conditions", [])
        }
        text = json.dumps({**{plural: _lasting(body) for plural, body in found.items()}, "conditions": conditions})
        # The hashes are of objects that hold the name.
        world: Json = json.loads(re.sub(r'-hash": "[0-9a-f]+"', '-hash": "HASH"', text.replace(name, "NAME")))
        return world


def _lasting(body: Json | None) -> Json | None:
    if body is None:
        return None
    metadata = {key: value for key, value in body["metadata"].items() if key not in VOLATILE}
    spec = {key: value for key, value in body.get("spec", {}).items() if key not in {"clusterIP", "clusterIPs"}}
    return {"metadata": metadata, "spec": spec}


@contextmanager
def serving() -> Iterator[tuple[Running, OperatorKiller]]:
    running = make_server()
    killer = OperatorKiller(running.uvicorn.config.loaded_app)
    running.uvicorn.config.loaded_app = killer
    thread = threading.Thread(target=running.serve, daemon=True)
    thread.start()
    try:
        yield running, killer
    finally:
        running.stop()
        thread.join(20)


def start_operator(kubeconfig: Path, log: Path) -> subprocess.Popen[bytes]:
    # A fixed identity: the Lease of the one that was killed is the new one's own at once.
    environment = {**os.environ, "SHOAL_OPERATOR_IDENTITY": "sweep"}
    command = [sys.executable, "-m", "shoal_operator", "--kubeconfig", str(kubeconfig)]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env=environment)


@pytest.mark.timeout(400)
def test_killed_at_any_call_the_operator_ends_up_with_the_same_world(tmp_path: Path) -> None:
    kubeconfig, log = tmp_path / "kubeconfig", tmp_path / "operator.log"
    with serving() as (running, killer), Api(running) as api:
        kubeconfig.write_text(running.kubeconfig)
        for file in sorted((ROOT / "crds").glob("*.yaml")):
            api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(file.read_text()))
        operator = start_operator(kubeconfig, log)
        try:
            killer.targets("sweep-whole", MOST_CALLS * 10, operator, after=True)
            api.create("sweep-whole")
            whole = eventually(lambda: complete(api.world("sweep-whole")), log.read_text)
            killed = 0
            for after in (True, False):
                for at in range(1, MOST_CALLS):
                    name = f"sweep-{'after' if after else 'before'}-{at:02d}"
                    killer.targets(name, at, operator, after=after)
                    api.create(name)
                    if not was_killed(killer, api, name, log):
                        break
                    killed += 1
                    operator = start_operator(kubeconfig, log)
                    until_equal(api, name, whole)
            assert killed >= 10, f"only {killed} calls were cut off: the killer missed"
            print(f"the operator was killed at {killed} calls")  # noqa: T201
        finally:
            operator.kill()
            operator.wait()


def was_killed(killer: OperatorKiller, api: Api, name: str, log: Path) -> bool:
    """Wait until the operator was killed, or has done all there is to do for the service."""
    eventually(lambda: killer.killed.is_set() or complete(api.world(name)), log.read_text)
    return killer.killed.wait(0.5)


def until_equal(api: Api, name: str, whole: Json) -> None:
    """Wait until what is written for the service is what an undisturbed operator writes."""
    eventually(lambda: api.world(name) == whole, lambda: difference(api.world(name), whole))


def complete(world: Json) -> Json | None:
    """Return the world once everything that a new service gets is there."""
    return world if all(world[plural] for plural in CHILDREN) and world["conditions"] else None


def difference(found: Json, expected: Json) -> str:
    """Return how two worlds differ, as a diff of their YAML."""
    before, after = (yaml.safe_dump(world).splitlines() for world in (expected, found))
    return "\n".join(unified_diff(before, after, "undisturbed", "killed", lineterm="", n=2))
