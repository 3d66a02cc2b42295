"""The ``helm test`` of the chart: create a small service, request a prediction, delete the service.

This process serves the model, so the test needs neither an object store nor a volume.
"""

import asyncio
import hashlib
import io
import json
import signal
import sys
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import aiohttp
import click
from aiohttp import web

from shoal_operator.cluster.api_server import ApiServer
from shoal_operator.cluster.connection import connect
from shoal_operator.cluster.objects import object_path
from shoal_operator.errors import ApiError, OperatorError
from shoal_schema.fields.declaring import Json
from shoal_schema.process.arguments import POSITIVE, run_arguments
from shoal_schema.process.environment import SettingsError
from shoal_schema.resource import API_VERSION, KIND, PLURAL

NAME = "shoal-trial"
PORT = 8080
_POLL_S = 1.0
_TIMEOUT = aiohttp.ClientTimeout(total=10)
_FILES = {
    "model.toml": 'handler = "handler.py:Doubler"\n',
    "handler.py": (
        "from shoal_runtime import TensorSpec\n\n\n"
        "class Doubler:\n"
        '    inputs = (TensorSpec("x", "FP32", [-1, 2]),)\n'
        '    outputs = (TensorSpec("y", "FP32", [-1, 2]),)\n\n'
        "    def forward(self, batch):\n"
        '        return batch["x"] * 2\n'
    ),
}
_REQUEST, _EXPECTED = {"instances": [[1.0, 2.0]]}, {"predictions": [[2.0, 4.0]]}


class TrialError(OperatorError):
    """The service sends no response in time, or a wrong response."""


def archive() -> bytes:
    """Return the archive of a model that doubles its input."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, text in _FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


def service(namespace: str, model: bytes, host: str, pull_secrets: Sequence[str]) -> Json:
    """Return an ``InferenceService`` that downloads its model from ``host``."""
    # Small enough for any node; PyTorch needs memory at its start.
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}
    address = f"[{host}]" if ":" in host else host
    spec: Json = {
        "model": {
            "uri": f"http://{address}:{PORT}/model.tar.gz",
            "checksum": f"sha256:{hashlib.sha256(model).hexdigest()}",
        },
        "runtime": {"resources": resources},
        "rollout": {"drainDelaySeconds": 0, "replacementTimeoutSeconds": 0},
        "pod": {"imagePullSecrets": [{"name": name} for name in pull_secrets]},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": spec,
    }


async def run(server: ApiServer, namespace: str, host: str, pull_secrets: Sequence[str] = ()) -> None:
    """Create the service, request a prediction, and delete the service.

    Raises:
        ApiError: a permission or the CustomResourceDefinition is missing.
        TrialError: the prediction is wrong.
    """
    model = archive()
    path = object_path(API_VERSION, PLURAL, namespace)
    async with _served(model, host):
        # A trial that was killed left its service.
        await _remove(server, f"{path}/{NAME}")
        try:
            await server.request("POST", path, service(namespace, model, host, pull_secrets))
            await _call(await _ready_url(server, f"{path}/{NAME}"))
        finally:
            await _remove(server, f"{path}/{NAME}")


async def _remove(server: ApiServer, path: str) -> None:
    try:
        await server.request("DELETE", path)
    except ApiError as error:
        if error.status != 404:
            raise


@asynccontextmanager
async def _served(model: bytes, host: str) -> AsyncIterator[None]:
    async def send_model(_: web.Request) -> web.Response:
        return web.Response(body=model, content_type="application/gzip")

    app = web.Application()
    app.router.add_get("/model.tar.gz", send_model)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, PORT).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def _ready_url(server: ApiServer, path: str) -> str:
    reported = ""
    while True:
        status = (await server.request("GET", path)).get("status", {})
        ready = next((each for each in status.get("conditions", []) if each["type"] == "Ready"), None)
        if ready and ready["status"] == "True":
            return str(status["url"])
        # Print each new reason, so that a trial that hangs shows why.
        if ready and ready["message"] != reported:
            reported = ready["message"]
            _print(f"{ready['reason']}: {reported}")
        await asyncio.sleep(_POLL_S)


async def _call(url: str) -> None:
    """Retry until the service responds: DNS and endpoints lag behind readiness."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        while True:
            with suppress(aiohttp.ClientConnectionError, TimeoutError):
                async with session.post(f"{url}/v1/models/{NAME}:predict", json=_REQUEST) as response:
                    if response.status < 500:
                        text = await response.text()
                        if response.status != HTTPStatus.OK or json.loads(text) != _EXPECTED:
                            raise TrialError(f"expected {_EXPECTED}, got status {response.status}: {text}")
                        return
            await asyncio.sleep(_POLL_S)


async def _within(limit_s: float, namespace: str, host: str, pull_secrets: Sequence[str]) -> None:
    trial = asyncio.current_task()
    assert trial is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, trial.cancel)
    server = ApiServer(connect)
    try:
        async with asyncio.timeout(limit_s):
            await run(server, namespace, host, pull_secrets)
    except TimeoutError:
        raise TrialError(f"service {NAME} in namespace {namespace} sent no response within {limit_s:g} s") from None
    finally:
        await server.close()


@click.command()
@click.option("--namespace", required=True, help="namespace of the trial's service")
@click.option("--host", required=True, help="address of this pod, from which the service downloads its model")
@click.option("--timeout", type=POSITIVE, default=240.0, help="seconds for the whole trial")
@click.option("--pull-secret", multiple=True, help="image pull Secret of the service")
def _trial(namespace: str, host: str, timeout: float, pull_secret: Sequence[str]) -> int:
    """Create a small InferenceService, request a prediction, and delete the service."""
    try:
        asyncio.run(_within(timeout, namespace, host, pull_secret))
    except (OperatorError, SettingsError) as error:
        _print(f"failed: {error}")
        return 1
    _print(f"an InferenceService in namespace {namespace} was created, served a prediction and was deleted")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the chart's test and return the exit status."""
    return run_arguments(_trial, "python -m shoal_operator.trial", arguments)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
