"""The cluster that Shoal brings itself."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.cluster import NODE_OPTIONS, Cluster


@dataclass(frozen=True)
class Embedded:
    """The parts of ``shoal local``."""

    folder: Path
    names: tuple[str, ...] = ("apiserver", "controllers", "kubelet", "services")
    embedded: bool = True

    def start(self) -> None:
        """Start those that do not run."""
        local("up", "--dir", str(self.folder), "--no-operator", *NODE_OPTIONS)


@contextmanager
def embedded(folder: Path) -> Iterator[Cluster]:
    """Run ``shoal local up``; stop it, pods included, at the end."""
    try:
        local("up", "--dir", str(folder), *NODE_OPTIONS)
        yield Cluster(folder, Embedded(folder))
    finally:
        local("down", "--dir", str(folder))


def local(*args: str) -> None:
    """Run ``shoal local``."""
    subprocess.run([sys.executable, "-m", "shoal_local", *args], check=True, timeout=120)
