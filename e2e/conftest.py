"""One embedded cluster for the whole suite, and the real kubectl to speak to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
KUBECTL = Path(sys.executable).parent / "kubectl"
PATIENCE_S = 60.0
MODELS = {
    "adder": ROOT / "examples" / "adder" / "model",
    "cat": ROOT / "examples" / "cat" / "model",
    "broken": Path(__file__).parent / "models" / "broken",
}


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs Shoal's operator with the chart's permissions."""

    folder: Path
    namespace: str = "default"

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @staticmethod
    def options() -> list[str]:
        """Return what `shoal local up` is told: models and devices."""
        models = [part for name, source in MODELS.items() for part in ("--model", f"{name}={source}")]
        return ["--capacity", "nvidia.com/gpu=1", *models]

    def processes(self, module: str, pod_uid: str = "") -> list[Path]:
        """Return the cmdline files of this cluster's pods that run a module of ours, of one pod or of all."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
                mounts = (path.parent / "mountinfo").read_text()
            except OSError:
                continue
            ours = str(self.folder) in mounts and pod_uid in mounts
            if ours and words[1:3] == [b"-m", module.encode()]:
                found.append(path)
        return found

    def kubectl(self, *args: str, text: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a user would."""
        done = subprocess.run(
            [str(KUBECTL), "--namespace", self.namespace, "--cache-dir", str(self.folder / "kubectl"), *args],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S + 30,
            check=False,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}{done.stdout}"
        return done

    def get(self, kind: str, *names: str, selector: str = "") -> Any:
        """Return an object, a list's items, or None for an object that is not there."""
        options = ["--selector", selector] if selector else []
        done = self.kubectl("get", kind, *names, *options, "--output", "json", "--ignore-not-found")
        found = json.loads(done.stdout) if done.stdout else None
        return found if names else (found or {"items": []})["items"]

    def apply(self, name: str = "adder", *, check: bool = True, **spec: Any) -> subprocess.CompletedProcess[str]:
        """Apply an InferenceService; the model is ``examples/adder`` unless ``spec`` says otherwise."""
        body = {
            "apiVersion": "serving.shoal.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": {"model": {"uri": "file:///models/adder"}, "rollout": {"drainDelaySeconds": 0}, **spec},
        }
        return self.kubectl("apply", "--filename", "-", text=yaml.safe_dump(body), check=check)

    def condition(self, name: str, kind: str = "Ready") -> dict[str, Any]:
        """Return one condition of a service; empty while there is none."""
        service = self.get("infsvc", name) or {}
        conditions = service.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def until_ready(self, name: str = "adder") -> None:
        """Wait until the newest spec is served."""

        def ready() -> bool:
            generation = self.get("infsvc", name)["metadata"]["generation"]
            progressing = self.condition(name, "Progressing")
            complete = progressing.get("reason") == "Complete" and progressing.get("observedGeneration") == generation
            return complete and self.condition(name).get("status") == "True"

        eventually(ready, lambda: self.kubectl("describe", "infsvc,pods", check=False).stdout)

    def address(self, name: str = "adder") -> str:
        """Return the URL at which the service is reached on this machine."""
        service = self.get("service", name)
        return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"


def eventually(check: Callable[[], Any], explain: Callable[[], str] = str, within_s: float = PATIENCE_S) -> Any:
    """Return what ``check`` returns as soon as that is true."""
    deadline_s = time.monotonic() + within_s
    while not (result := check()):
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s\n{explain()}"
        time.sleep(0.1)
    return result


def local(*args: str) -> None:
    """Run ``shoal local``."""
    subprocess.run([sys.executable, "-m", "shoal_local", *args], check=True, timeout=120)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster; stop it, pods included, at the end."""
    folder = tmp_path_factory.mktemp("cluster")
    local("up", "--dir", str(folder), *Cluster.options())
    try:
        yield Cluster(folder)
    finally:
        local("down", "--dir", str(folder))


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a test a namespace of its own, and delete it afterwards."""
    name = request.node.name.lower().replace("_", "-").split("[")[0][:50].strip("-")
    cluster.kubectl("create", "namespace", name)
    try:
        yield Cluster(cluster.folder, name)
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=true", f"--timeout={PATIENCE_S:g}s")
