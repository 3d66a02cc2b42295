"""What `helm test` runs: a service is made, called, and gone afterwards, whatever it answers."""

import asyncio
from hashlib import sha256
from typing import Any

import pytest
from aiohttp import ClientSession, web

from shoal_operator import trial
from shoal_operator.errors import ApiError
from shoal_schema.decoding import parse_spec
from shoal_schema.fields.declaring import Json
from tests.ports import free_port

HOST = "127.0.0.1"


class Server:
    """An API server for one service, which is ready at once and sends a given response."""

    def __init__(self, answer: Json, status: int = 200, refuses: str = "") -> None:
        self.stored: Json | None = None
        self.asked: list[str] = []
        self.whole = False
        self.url = ""
        self._answer = answer
        self._status = status
        self._refuses = refuses

    async def request(self, method: str, path: str, body: Any = None) -> Json:
        self.asked.append(method)
        if method == self._refuses:
            raise ApiError(403, "forbidden")
        if method == "POST":
            self.stored = body
            async with ClientSession() as session, session.get(body["spec"]["model"]["uri"]) as answer:
                self.whole = body["spec"]["model"]["checksum"] == f"sha256:{sha256(await answer.read()).hexdigest()}"
        elif method == "DELETE":
            if self.stored is None:
                raise ApiError(404, "not found")
            self.stored = None
        return {"status": {"url": self.url, "conditions": [{"type": "Ready", "status": "True"}]}}

    async def predict(self, request: web.Request) -> web.Response:
        assert await request.json() == {"instances": [[1.0, 2.0]]}
        return web.json_response(self._answer, status=self._status)

    async def try_it(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/models/shoal-trial:predict", self.predict)
        runner = web.AppRunner(app)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, HOST, port).start()
        self.url = f"http://{HOST}:{port}"
        try:
            await trial.run(self, "team-a", HOST, ["registry"])  # type: ignore[arg-type]
        finally:
            await runner.cleanup()


@pytest.fixture(autouse=True)
def some_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PORT", free_port())


def test_serving_service_passes_and_is_removed() -> None:
    server = Server({"predictions": [[2.0, 4.0]]})
    asyncio.run(server.try_it())

    assert server.asked == ["DELETE", "POST", "GET", "DELETE"]
    assert server.stored is None
    assert server.whole


def test_remains_of_a_killed_trial_are_removed_first() -> None:
    server = Server({"predictions": [[2.0, 4.0]]})
    server.stored = {}
    asyncio.run(server.try_it())

    assert server.stored is None


@pytest.mark.parametrize(("answer", "status"), [({"predictions": [[2.0, 5.0]]}, 200), ({"error": "no model"}, 404)])
def test_wrong_response_is_a_failure_and_the_service_is_removed(answer: Json, status: int) -> None:
    server = Server(answer, status)

    with pytest.raises(trial.TrialError, match=f"status {status}"):
        asyncio.run(server.try_it())
    assert server.stored is None


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_missing_right_is_reported(method: str) -> None:
    server = Server({}, refuses=method)

    with pytest.raises(ApiError, match="forbidden"):
        asyncio.run(server.try_it())
    assert server.stored is None


@pytest.mark.parametrize("host", ["10.0.0.5", "fd00::5"])
def test_the_service_is_one_that_the_operator_understands(host: str) -> None:
    made = trial.service("team-a", trial.archive(), host, ["registry"])
    spec = parse_spec(made)

    shown = f"[{host}]" if ":" in host else host
    assert spec.model is not None
    assert spec.model.uri == f"http://{shown}:{trial.PORT}/model.tar.gz"
    assert made["spec"]["pod"]["imagePullSecrets"] == [{"name": "registry"}]
