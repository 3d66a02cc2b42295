"""Every route by which rows of named columns reach a model, and the models that tests send them to."""

import csv
from collections.abc import Callable
from io import StringIO
from typing import Any

import numpy as np
import orjson

from shoal_proxy.codecs.base import DecodedRequest
from shoal_proxy.codecs.invocations import Invocations
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.rpc.inference_pb2 import ModelInferRequest
from shoal_proxy.rpc.messages import GrpcV2
from shoal_schema.wire.columns import NULL, encode_columns
from shoal_schema.wire.datatypes import DTYPES
from shoal_schema.wire.elements import pack_elements
from tests.fakes import tensor
from tests.proxy.signatures import call, signature

WIDE = signature([tensor("input-0", "FP64", [-1, 3], columns=encode_columns(["a", "b", "c"]), nullable=True)])
STRICT = signature([tensor("input-0", "FP32", [-1, 2], columns=encode_columns(["a", "b"]))])
WHOLE = signature([tensor("input-0", "INT64", [-1, 2], columns=encode_columns(["a", "b"]))])
MIXED = signature(
    [
        tensor("size", "FP64", [-1], nullable=True),
        tensor("count", "INT64", [-1]),
        tensor("town", "BYTES", [-1], nullable=True),
        tensor("flag", "BOOL", [-1]),
        tensor("born", "BYTES", [-1], logical_type="datetime", unit="ms", nullable=True),
        tensor("note", "BYTES", [-1], optional=True),
    ]
)
Record = dict[str, Any]
Route = Callable[[list[Record], list[str], ModelSignature], DecodedRequest]


def datatype_of(name: str, model: ModelSignature) -> str:
    spec = model.inputs.get(name) or model.inputs.get(model.columns.get(name, ("input-0", 0))[0])
    return spec.datatype if spec is not None else "FP64"


def v1_rows(records: list[Record], names: list[str], model: ModelSignature) -> DecodedRequest:
    return V1().decode(call({"instances": [{name: each[name] for name in names} for each in records]}), model)


def v1_columns(records: list[Record], names: list[str], model: ModelSignature) -> DecodedRequest:
    return V1().decode(call({"inputs": {name: [each[name] for each in records] for name in names}}), model)


def split(records: list[Record], names: list[str], model: ModelSignature) -> DecodedRequest:
    table = {"columns": names, "data": [[each[name] for name in names] for each in records]}
    return Invocations(1 << 20).decode(call({"dataframe_split": table}), model)


def records_of(records: list[Record], names: list[str], model: ModelSignature) -> DecodedRequest:
    table = [{name: each[name] for name in names} for each in records]
    return Invocations(1 << 20).decode(call({"dataframe_records": table}), model)


def csv_text(records: list[Record], names: list[str], model: ModelSignature) -> DecodedRequest:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([["" if each[name] is None else each[name] for name in names] for each in records])
    return Invocations(1 << 20).decode(call(text.getvalue().encode(), content_type="text/csv"), model)


def v2_json(records: list[Record], names: list[str], model: ModelSignature) -> DecodedRequest:
    tensors = [
        {
            "name": name,
            "datatype": datatype_of(name, model),
            "shape": [len(records)],
            "data": [r[name] for r in records],
        }
        for name in names
    ]
    return V2().decode(call({"inputs": tensors}), model)


def raw_of(name: str, records: list[Record], model: ModelSignature) -> bytes:
    values, datatype = [each[name] for each in records], datatype_of(name, model)
    if datatype == "BYTES":
        return pack_elements([NULL if value is None else str(value).encode() for value in values])
    return np.array([np.nan if value is None else value for value in values]).astype(DTYPES[datatype]).tobytes()


def v2_binary(records: list[Record], names: list[str], model: ModelSignature) -> DecodedRequest:
    parts = {name: raw_of(name, records, model) for name in names}
    header = orjson.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": datatype_of(name, model),
                    "shape": [len(records), 1],
                    "parameters": {"binary_data_size": len(raw)},
                }
                for name, raw in parts.items()
            ]
        }
    )
    headers = {"inference-header-content-length": str(len(header))}
    codec, body = V2(), header + b"".join(parts.values())
    first = codec.decode(call(body, **headers), model)
    again = codec.decode(call(body, **headers), model)
    assert plain(first) == plain(again)  # what is kept of a first request changes no second one
    return first


def grpc_message(records: list[Record], names: list[str], model: ModelSignature) -> DecodedRequest:
    tensors = [{"name": name, "datatype": datatype_of(name, model), "shape": [len(records)]} for name in names]
    raw = [raw_of(name, records, model) for name in names]
    message = ModelInferRequest(model_name="m", inputs=tensors, raw_input_contents=raw)
    return GrpcV2("m", "1").decode(call(message.SerializeToString()), model)


ROUTES: list[Route] = [v1_rows, v1_columns, split, records_of, csv_text, v2_json, v2_binary, grpc_message]


def column(name: str, datatype: str, values: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": values}


def plain(decoded: DecodedRequest) -> dict[str, Any]:
    """Return inputs so that equal ones are equal, NaN included."""
    return {
        name: (array.shape, array.dtype.str, array.tolist() if array.dtype.hasobject else array.tobytes())
        for name, array in decoded.inputs.items()
    }
