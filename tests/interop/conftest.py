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


def client_of(environment: str, module: str) -> Any:
    """Return a fixture that runs a module of clients/ in an environment, for the whole session."""

    @pytest.fixture(scope="session")
    def client() -> Iterator[ForeignClient]:
        with foreign_client(python_with(environment), module) as running:
            yield running

    return client


triton = client_of("clients", "triton_calls")
kserve = client_of("clients", "kserve_calls")
triton_grpc = client_of("clients", "triton_grpc_calls")
kserve_grpc = client_of("clients", "kserve_grpc_calls")
openai = client_of("callers", "openai_calls")
cohere = client_of("callers", "cohere_calls")
mlflow = client_of("callers", "mlflow_calls")


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    """Run a proxy in front of a model that doubles rows of four floats; a module's tests share it."""
    with running_proxy() as proxy:
        yield proxy
