"""Columns, nulls and dates of a model's metadata: what the runtime writes, proxy and client read alike."""

from typing import Any

import numpy as np
import orjson
import pytest

from shoal.wire.frames import Rows, rows_of_frame
from shoal.wire.items import encode_items
from shoal.wire.messages import infer_request
from shoal.wire.signature import Signature, Tensor, parse_signature
from shoal_proxy.batching.batch import make_batch, merge
from shoal_proxy.batching.pending import PendingRequest, RequestSlice
from shoal_proxy.codecs.base import InferCall
from shoal_proxy.codecs.upstream import encode_batch
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.model.signature import InputSpec, ModelSignature, parse_metadata
from shoal_runtime import TensorSpec
from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.codecs.request import decode_request
from shoal_runtime.signature.tensors import Signature as Served
from shoal_runtime.signature.tensors import make_signature
from shoal_schema.wire.columns import NULL

OUTPUT = TensorSpec("y", "FP32", [-1])
SPECS = [
    TensorSpec("x", "FP64", [-1, 3], columns=["a", "b", "ü,\"'"], nullable=True),
    TensorSpec("x", "INT64", [-1, 1], columns=["x"]),
    TensorSpec("x", "BYTES", [-1], nullable=True, content_type="text/plain"),
    TensorSpec("x", "BYTES", [-1], logical_type="datetime", unit="ms"),
    TensorSpec("x", "BYTES", [-1], logical_type="datetime", nullable=True, optional=True),
    TensorSpec("x", "FP32", [-1, 2]),
]


def three_sides(*specs: TensorSpec) -> tuple[Served, ModelSignature, Signature]:
    served = make_signature(list(specs), [OUTPUT], max_batch_size=64, allowed_batch_sizes=())
    document = orjson.loads(orjson.dumps(model_metadata("m", "1", "test", served)))
    return served, parse_metadata(document), parse_signature(document)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_proxy_and_client_read_what_the_runtime_writes(spec: TensorSpec) -> None:
    _, proxy, client = three_sides(spec)
    expected = (tuple(spec.columns), spec.nullable, spec.logical_type or "", spec.unit or "", spec.optional)
    readings: list[InputSpec | Tensor] = [proxy.inputs["x"], client.inputs[0]]
    for read in readings:
        assert (read.columns, read.nullable, read.logical_type, read.unit, read.optional) == expected


def arriving(decoded: Any, served: Served, proxy: ModelSignature) -> dict[str, Any]:
    """Return the arrays that the runtime decodes of what the proxy has decoded."""
    pending = PendingRequest(
        inputs=decoded.inputs,
        rows=decoded.rows,
        size_bytes=0,
        arrived_s=0.0,
        deadline_s=1.0,
        deliver=lambda outcome: None,
    )
    batch = make_batch([RequestSlice(pending, 0, pending.rows, pending.inputs)])
    header, tail = encode_batch(batch, merge(batch, proxy).inputs, proxy, binary=True)
    request = decode_request(memoryview(header + b"".join(map(bytes, tail))), len(header), served)
    return dict(request.inputs)


def test_rows_of_the_client_and_of_json_arrive_at_the_runtime_alike() -> None:
    served, proxy, client = three_sides(
        TensorSpec("n", "FP64", [-1, 2], columns=["a", "b"], nullable=True),
        TensorSpec("town", "BYTES", [-1], nullable=True),
        TensorSpec("born", "BYTES", [-1], logical_type="datetime", unit="s"),
    )
    rows: list[dict[str, Any]] = [
        {"town": "Oslo", "b": 1, "born": 7, "a": None},
        {"a": 2.5, "b": 3, "town": None, "born": "2024-01-31"},
    ]
    columns = {name: [row[name] for row in rows] for name in ("born", "b", "a", "town")}
    rows_of_client = Rows(rows_of_frame(columns, client), lambda item: item)
    sent = [
        infer_request("m", client, encode_items(rows, client), {}),
        infer_request("m", client, encode_items(rows_of_client[0:2], client), {}),
    ]
    decoded = [
        V2().decode(InferCall({name.encode(): text.encode() for name, text in each.headers.items()}, each.body), proxy)
        for each in sent
    ]
    decoded.append(V1().decode(InferCall({}, orjson.dumps({"instances": rows})), proxy))
    decoded.append(V1().decode(InferCall({}, orjson.dumps({"inputs": columns})), proxy))
    for each in decoded:
        inputs = arriving(each, served, proxy)
        np.testing.assert_array_equal(inputs["n"], [[np.nan, 1], [2.5, 3]])
        assert inputs["town"].tolist() == [b"Oslo", NULL]
        assert inputs["born"].tolist() == [b"7", b"2024-01-31"]
