"""What fails in the runtime, as the proxy reads it: any message a model may raise, for a row or for its batch."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from shoal_proxy.codecs.upstream import decode_failure, decode_result
from shoal_proxy.errors import ModelFailed
from shoal_proxy.model.signature import ModelSignature, parse_metadata
from shoal_runtime import ItemError
from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.http.server import App, ServedModel
from shoal_runtime.readiness import Readiness
from tests.runtime.fakes import Adder, Bench, ask

MESSAGES = ["\ud800", "\udfff\N{GRINNING FACE}", "\x00\n\u2028", '"\\', "x" * 10_000_000, ""]
BODY = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}]})


class Failing(Adder):
    def __init__(self, fault: BaseException, *, whole: bool) -> None:
        self.fault = fault
        self.whole = whole

    def forward(self, batch: Mapping[str, Any]) -> Any:
        if self.whole:
            raise self.fault
        return [self.fault, batch["x"][1] + 1]


def answered(model: Failing) -> tuple[int, dict[str, str], bytes, ModelSignature]:
    with Bench(model) as bench:
        readiness = Readiness()
        app = App(readiness, max_body_bytes=4096)
        app.serve(ServedModel("m", "1", "test", bench.pipeline))
        readiness.ready()
        status, headers, body = asyncio.run(ask(app, "/v2/models/m/infer", method="POST", body=[BODY]))
        metadata = orjson.loads(orjson.dumps(model_metadata("m", "1", "test", bench.signature)))
    return status, headers, body, parse_metadata(metadata)


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
@pytest.mark.parametrize("kind", [ItemError, RuntimeError, KeyboardInterrupt])
def test_a_row_s_message_reaches_the_proxy_whatever_it_is(kind: type[BaseException], message: str) -> None:
    status, _, body, signature = answered(Failing(kind(message), whole=False))

    result = decode_result(body, None, signature)

    assert status == 200
    assert [error.row for error in result.errors] == [0]
    size_bytes = len(body)
    assert size_bytes < 20_000
    assert result.outputs["y"].tolist() == [[4, 5]]


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
@pytest.mark.parametrize("kind", [ItemError, RuntimeError, KeyboardInterrupt])
def test_a_batch_s_message_reaches_the_proxy_whatever_it_is(kind: type[BaseException], message: str) -> None:
    status, headers, body, _ = answered(Failing(kind(message), whole=True))

    failure = decode_failure(status, body)

    assert isinstance(failure, ModelFailed)
    assert failure.message.startswith(f"forward raised {kind.__name__}")
    assert headers["x-shoal-executed"] == "maybe"
