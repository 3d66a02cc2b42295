"""The product beside the oracle: models in a process of their own, and what their metadata say."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.server import serving
from tests import plain

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is served.

    Args:
        url: where HTTP is spoken.
        model: its name in paths.
        grpc: the address of the gRPC port; empty where there is none.
        metadata: the model's, of V2.
    """

    url: str
    model: str
    grpc: str
    metadata: Mapping[str, Any]


class Refused(Exception):
    """The product does not load the model; the sentence says why."""


class Hosts:
    """The process that serves models."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def serve(self, name: str, path: Path) -> Served:
        """Serve a model.

        Raises:
            Refused: it cannot be loaded.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"name": name, "path": str(path)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the host ended with {self._process.wait(10)} when it was asked to serve {name}")
        report = json.loads(line)
        if "refused" in report:
            raise Refused(report["refused"])
        url = f"http://127.0.0.1:{report['port']}"
        return Served(url, "m", report["grpc"], _metadata(url, "m"))


@contextmanager
def hosts(directory: Path, log: Path) -> Iterator[Hosts]:
    """Run the process that serves models for as long as the block lasts."""
    directory.mkdir()
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.oracle.host", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **THREADS},
        )
        try:
            yield Hosts(process)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


@contextmanager
def command(path: Path) -> Iterator[Served]:
    """Serve a model with ``shoal serve``, as its users do."""
    with serving(path, fields={"model.allowPickle": "true", "metadata.name": "m"}) as server:
        yield Served(server.url, "m", "", _metadata(server.url, "m"))


def _metadata(url: str, model: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = plain.get(f"{url}/v2/models/{model}", timeout=30).raise_for_status().json()
    return found


__all__ = ["Hosts", "Refused", "Served", "command", "hosts"]
