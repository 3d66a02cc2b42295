"""What comes back: outputs row by row, whichever door they come from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracle.cases import Case
from tests.oracle.doors import DTYPES

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A status as HTTP has it, and the outputs of each row, or what was said instead."""

    status: int
    rows: Rows | None = None
    said: str = ""


def read(case: Case, status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Return an HTTP answer's rows."""
    if status != 200:
        return Answer(status, said=body.decode(errors="replace")[:500])
    length = headers.get("inference-header-content-length")
    document = json.loads(body if length is None else body[: int(length)])
    if type(document) is dict and "model_name" in document:
        tail = b"" if length is None else body[int(length) :]
        return Answer(200, _v2_rows(document["outputs"], tail))
    if type(document) is dict and "outputs" in document:
        return Answer(200, by_columns(case, document["outputs"]))
    found = document["predictions"] if type(document) is dict and "predictions" in document else [document]
    return Answer(200, [_row(case, each) for each in found])


def _row(case: Case, value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {case.outputs[0]: value}


def by_columns(case: Case, outputs: Any) -> Rows:
    """Return rows of whole outputs, by name, or of the only one."""
    named = outputs if isinstance(outputs, dict) else {case.outputs[0]: outputs}
    count = len(next(iter(named.values())))
    return [{name: values[row] for name, values in named.items()} for row in range(count)]


def _v2_rows(outputs: list[dict[str, Any]], tail: bytes) -> Rows:
    arrays = {}
    for item in outputs:
        size = item.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = np.array(item["data"], object)
        else:
            array, tail = decoded(item["datatype"], tail[:size]), tail[size:]
        arrays[item["name"]] = array.reshape(item["shape"]).tolist()
    count = len(next(iter(arrays.values())))
    return [{name: values[row] for name, values in arrays.items()} for row in range(count)]


def decoded(datatype: str, data: bytes) -> Any:
    """Return the elements of a binary tensor."""
    if datatype != "BYTES":
        return np.frombuffer(data, DTYPES[datatype]).astype(object)
    elements = []
    while data:
        size = int.from_bytes(data[:4], "little")
        elements.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return np.array(elements, object)
