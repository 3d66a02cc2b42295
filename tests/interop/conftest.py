import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import RunningProxy, running_proxy
from tests.interop.environments import HERE, python_with


class ForeignError(Exception):
    """The foreign client raised: ``kind`` is the class, the message its own."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ForeignClient:
    """A client library in a process and environment of its own; each call runs one function there."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Return what the function returned; raise `ForeignError` when it raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        call = {"function": function, "arguments": arguments, "options": options}
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "raised" in answer:
            raise ForeignError(answer["raised"], answer["message"])
        return answer["result"]


@contextmanager
def foreign_client(python: Path, module: str, **environment: str) -> Iterator[ForeignClient]:
    command = [str(python), str(HERE / "clients" / "answering.py"), module]
    environ = {**os.environ, **environment}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            yield ForeignClient(process)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """Return a Python that has the foreign clients."""
    return python_with("clients")


@pytest.fixture(scope="session")
def triton(clients_python: Path) -> Iterator[ForeignClient]:
    """Run ``tritonclient``."""
    with foreign_client(clients_python, "triton_calls") as client:
        yield client


@pytest.fixture(scope="session")
def kserve(clients_python: Path) -> Iterator[ForeignClient]:
    """Run the ``kserve`` client."""
    with foreign_client(clients_python, "kserve_calls") as client:
        yield client


@pytest.fixture(scope="session")
def triton_grpc(clients_python: Path) -> Iterator[ForeignClient]:
    """Run ``tritonclient.grpc``."""
    with foreign_client(clients_python, "triton_grpc_calls") as client:
        yield client


@pytest.fixture(scope="session")
def kserve_grpc(clients_python: Path) -> Iterator[ForeignClient]:
    """Run the ``kserve`` client over gRPC."""
    with foreign_client(clients_python, "kserve_grpc_calls") as client:
        yield client


@pytest.fixture(scope="session")
def callers_python() -> Path:
    """Return a Python that has the clients of OpenAI, Cohere and MLflow."""
    return python_with("callers")


@pytest.fixture(scope="session")
def openai(callers_python: Path) -> Iterator[ForeignClient]:
    """Run OpenAI's client."""
    with foreign_client(callers_python, "openai_calls") as client:
        yield client


@pytest.fixture(scope="session")
def cohere(callers_python: Path) -> Iterator[ForeignClient]:
    """Run Cohere's client."""
    with foreign_client(callers_python, "cohere_calls") as client:
        yield client


@pytest.fixture(scope="session")
def mlflow(callers_python: Path) -> Iterator[ForeignClient]:
    """Run MLflow's scoring client."""
    with foreign_client(callers_python, "mlflow_calls") as client:
        yield client


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    """Run a proxy in front of a model that doubles rows of four floats; a module's tests share it."""
    with running_proxy() as proxy:
        yield proxy
