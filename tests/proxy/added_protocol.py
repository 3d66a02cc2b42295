"""Serve a protocol that only this script adds: one entry in the table, and one codec. Prints what a client sees."""

import json
import sys
from typing import Any

from shoal_schema.interfaces import protocols
from shoal_schema.interfaces.protocols import ClientProtocol, HealthCheck, ProtocolTable

LINES = ClientProtocol(
    "lines", "Lines", infer=("/lines/{model}[/{version}]", "/lines"), checks=(HealthCheck("/lively", {"ok": 1}),)
)
KEY = "alice-key-0123456789"
BODY = "1 1 1 1\n2 2 2 2\n"


def add() -> None:
    """Add the entry before any other module reads the table; then bind the codec."""
    protocols.HTTP = ProtocolTable(*protocols.HTTP.protocols, LINES)  # type: ignore[misc]

    import numpy as np

    from shoal_proxy.codecs.base import DecodedRequest, HttpResponse, InferCall
    from shoal_proxy.codecs.protocols import CODECS

    class Lines:
        def decode(self, call: InferCall, signature: Any) -> DecodedRequest:
            rows = np.array([line.split() for line in bytes(call.body).decode().splitlines()], np.float32)
            return DecodedRequest({"x": rows}, len(rows))

        def encode(self, decoded: Any, outputs: Any, lengths: Any, signature: Any) -> HttpResponse:
            text = "".join(" ".join(f"{value:g}" for value in row) + "\n" for row in outputs["y"].tolist())
            return HttpResponse(200, (text.encode(),), b"text/plain")

        def error(self, error: Any) -> HttpResponse:
            return HttpResponse(error.status, (b"lines: " + error.message.encode(),), b"text/plain")

    CODECS[LINES.label] = lambda options: Lines()


def seen(keys: str) -> dict[str, Any]:
    """Return what a client sees; ``keys`` is a folder with the access key `KEY`."""
    from shoal.serving.routing import model_of
    from shoal_schema.interfaces.metrics import REQUESTS
    from tests import plain
    from tests.fakes import running_proxy

    with running_proxy(proxy__docs=True) as running:
        with plain.Client(base_url=running.url) as client:
            served = [client.post(f"/lines{path}", content=BODY).text for path in ("", "/double", "/double/1")]
            unknown = client.post("/lines/other", content=BODY)
            listed = client.get("/openapi.json").json()["paths"]
            checked = client.get("/lively").json()
            wrong = client.get("/lines/double").status_code
        counted = running.proxy.metrics.text().decode()
    with running_proxy(process__api_keys=keys) as running, plain.Client(base_url=running.url) as client:
        guarded = [client.post("/lines", content=BODY, headers={"x-api-key": key}) for key in ("", KEY)]
        checks = client.get("/lively").status_code
    return {
        "served": served,
        "unknown": [unknown.status_code, unknown.text[:6]],
        "method": wrong,
        "listed": "/lines/double" in listed,
        "counted": 'shoal_proxy_requests_total{protocol="lines",status="200"} 3.0' in counted,
        "declared": "lines" in REQUESTS.labels["protocol"],
        "checked": [checked, checks],
        "guarded": [each.status_code for each in guarded],
        "models": [model_of("/lines/cat"), model_of("/lines"), model_of("/lively")],
    }


if __name__ == "__main__":
    add()
    sys.stdout.write(json.dumps(seen(sys.argv[1])))
