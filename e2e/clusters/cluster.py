"""A cluster as its users see it, and those of its processes that tests may kill."""

import json
import os
import signal
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from e2e.clusters.kubectl import kubectl
from e2e.waiting import eventually
from shoal_local.processes import Process

ROOT = Path(__file__).parents[2]
MODELS = {
    "adder": ROOT / "examples" / "adder" / "model",
    "cat": ROOT / "examples" / "cat" / "model",
    "detector": ROOT / "examples" / "pipeline" / "detector",
    "broken": ROOT / "e2e" / "models" / "broken",
    "drifting": ROOT / "e2e" / "models" / "drifting",
    "uneven": ROOT / "e2e" / "models" / "uneven",
}
NODE_OPTIONS = (
    "--capacity",
    "nvidia.com/gpu=1",
    *(part for name, source in MODELS.items() for part in ("--model", f"{name}={source}")),
)
"""The node's configuration: devices and models."""
OPERATOR = "app.kubernetes.io/component=operator"
"""Picks the operator's pods; beside them is the activator."""
OURS = "serving.shoal.dev/suite"
"""Marks the namespaces that tests make."""


class Parts(Protocol):
    """The processes that this suite started for a cluster."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return those that may be killed; each has a file of its name in ``parts/``."""

    @property
    def embedded(self) -> bool:
        """Return whether the control plane is Shoal's own."""

    def start(self) -> None:
        """Start those that do not run; return when the node takes pods."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs Shoal's operator with the chart's permissions."""

    folder: Path
    parts: Parts
    namespace: str = "default"

    def within(self, namespace: str) -> "Cluster":
        """Return the same cluster, seen from another namespace."""
        return replace(self, namespace=namespace)

    def skip_unless_embedded(self, why: str) -> None:
        """Skip the test on any other cluster."""
        if not self.parts.embedded:
            pytest.skip(f"only on the embedded cluster: {why}")

    def create_namespace(self) -> None:
        """Make the namespace that this cluster is seen from."""
        metadata = {"name": self.namespace, "labels": {OURS: "e2e"}}
        self.kubectl(
            "create",
            "--filename",
            "-",
            text=yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}),
        )

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    def kill(self, part: str) -> None:
        """Kill a part as a crash would."""
        pid = Process(part, self.folder).pid
        assert pid is not None, f"{part} does not run"
        os.kill(pid, signal.SIGKILL)

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
        """Run kubectl in the namespace."""
        return kubectl(self.kubeconfig, "--namespace", self.namespace, *args, text=text, check=check)

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
