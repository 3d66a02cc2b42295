"""The kubelet's state on disk, by which a restarted kubelet adopts pods.

Each pod has a directory named by its uid, which contains one directory per run of a container. Files are replaced
atomically: after a kill, a file has its old or its new content.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal_local.kubelet.shim import write_json
from shoal_local.objects import Object


def read_json(path: Path) -> Object | None:
    """Return the value in a JSON file, or None if the file does not exist."""
    try:
        found: Object = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return found


class PodRecord:
    """The directory of one pod's files."""

    def __init__(self, root: Path, uid: str) -> None:
        self.directory = root / uid
        self.uid = uid

    def save(self, pod: Object, address: str) -> None:
        """Write the pod as last received from the API, and its address."""
        write_json(self.directory / "pod.json", {"pod": pod, "address": address})

    def load(self) -> tuple[Object, str] | None:
        """Return the pod and its address, or None if the kubelet was killed before it saved them."""
        found = read_json(self.directory / "pod.json")
        return (found["pod"], found["address"]) if found else None

    @property
    def grace_s(self) -> float:
        """Return the pod's termination grace period in seconds."""
        found = self.load()
        return float(found[0]["spec"].get("terminationGracePeriodSeconds", 30)) if found else 0.0

    def container(self, name: str) -> Path:
        """Return the directory of a container of the pod."""
        return self.directory / "containers" / name

    def run(self, name: str, attempt: int) -> Path:
        """Return the directory of one run of a container."""
        return self.container(name) / str(attempt)

    @property
    def volumes(self) -> Path:
        """Return the directory of the pod's volumes, each in a directory of its name."""
        return self.directory / "volumes"

    def remove(self) -> None:
        """Remove the pod's directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


def known_pods(root: Path) -> list[PodRecord]:
    """Return the records of all pods that have a directory."""
    root.mkdir(parents=True, exist_ok=True)
    return [PodRecord(root, directory.name) for directory in sorted(root.iterdir()) if directory.is_dir()]


class Models:
    """Names and directories of models, stored beside the pods' files."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "models.json"

    def add(self, models: Mapping[str, str]) -> None:
        """Add models or change their directories; running pods keep their mounts."""
        if models:
            write_json(self._file, {**self._all(), **models})

    def directories(self) -> dict[str, str]:
        """Return the directories of models by name, if they exist."""
        # A deleted directory must not break the other models.
        return {name: directory for name, directory in self._all().items() if Path(directory).is_dir()}

    def _all(self) -> dict[str, str]:
        return dict(read_json(self._file) or {})
