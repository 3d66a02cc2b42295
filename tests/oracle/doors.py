"""The doors over HTTP: how each writes a request's rows, and for which models it is there."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal_schema.wire.columns import NULL
from tests.oracle.asking import Request, Twist
from tests.oracle.cases import Case, Form
from tests.oracle.frames import Rng

DTYPES = {
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BOOL": np.dtype("?"),
}
NAMED = (Twist.ODD, Twist.MISSING, Twist.RENAMED, Twist.EXTRA)
TYPED = (*NAMED, Twist.TEXT, Twist.NUMBER, Twist.ONE)
BY_PLACE = (Twist.ODD, Twist.TEXT, Twist.FLAG, Twist.NUMBER)


class Impossible(Exception):
    """The rows cannot be written for this door: a value is none of its datatype."""


@dataclass(frozen=True, slots=True)
class Message:
    """An HTTP request."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


Write = Callable[[Case, Request, Rng], Message]


@dataclass(frozen=True, slots=True)
class Door:
    """One way to ask.

    Args:
        name: of it.
        write: a request as the door has it.
        there: whether a model has it.
        twists: that it can carry.
        any_order: whether columns are matched by name.
        ignores_extra: whether a column more is ignored, not refused.
        rows: how many it takes at most.
    """

    name: str
    write: Write
    there: Callable[[Case], bool]
    twists: Sequence[Twist] = NAMED
    any_order: bool = True
    ignores_extra: bool = False
    rows: int = 1000


def value_of(value: Any, request: Request) -> Any:
    """Return a value as JSON has it."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if request.whole and type(value) is int:
        return float(value)
    return value


def _json(path: str, document: Any) -> Message:
    return Message(path, json.dumps(document, allow_nan=False).encode())


def _predict(case: Case) -> str:
    return f"/v1/models/{case.served.model}:predict"


def _infer(case: Case) -> str:
    return f"/v2/models/{case.served.model}/infer"


def objects(request: Request) -> list[dict[str, Any]]:
    """Return the rows as objects, their keys in the request's order."""
    return [{name: value_of(row[name], request) for name in request.names} for row in request.rows]


def lists(case: Case, request: Request) -> list[Any]:
    """Return the rows by place: values alone where the model has one input of one value."""
    if case.form is Form.SINGLE:
        return [value_of(row[case.names[0]], request) for row in request.rows]
    return [[value_of(row[name], request) for name in request.names] for row in request.rows]


def _v1_objects(case: Case, request: Request, _: Rng) -> Message:
    return _json(_predict(case), {"instances": objects(request)})


def _v1_lists(case: Case, request: Request, _: Rng) -> Message:
    return _json(_predict(case), {"instances": lists(case, request)})


def _v1_columns(case: Case, request: Request, _: Rng) -> Message:
    columns = {name: [value_of(row[name], request) for row in request.rows] for name in request.names}
    return _json(_predict(case), {"inputs": columns})


def _v1_tensor(case: Case, request: Request, rng: Rng) -> Message:
    rows = lists(case, request)
    return _json(_predict(case), {"inputs": rows if rng.random() < 0.5 else {case.inputs[0]["name"]: rows}})


def _torchserve(case: Case, request: Request, _: Rng) -> Message:
    row = lists(case, request)[0] if not case.entry.named or case.form is not Form.APART else objects(request)[0]
    return _json(f"/predictions/{case.served.model}", row)


def _records(case: Case, request: Request, rng: Rng) -> Message:
    records = objects(request)
    if rng.random() < 0.3:
        records = [
            {name: record[name] for name in reversed(record)} if rng.random() < 0.5 else record for record in records
        ]
    return _json("/invocations", {"dataframe_records": records})


def _split(case: Case, request: Request, rng: Rng) -> Message:
    data = [[value_of(row[name], request) for name in request.names] for row in request.rows]
    table = {"columns": request.names, "data": data}
    if rng.random() < 0.3:
        table["index"] = list(range(len(data)))
    return _json("/invocations", {"dataframe_split": table})


def _split_bare(case: Case, request: Request, rng: Rng) -> Message:
    data = [[value_of(row[name], request) for name in request.names] for row in request.rows]
    columns = {"columns": list(range(len(request.names)))} if rng.random() < 0.5 else {}
    return _json("/invocations", {"dataframe_split": {**columns, "data": data}})


def _split_claimed(case: Case, request: Request, rng: Rng) -> Message:
    """Write names that a model without names cannot check."""
    return _split(case, request, rng)


def cell(value: Any, request: Request, rng: Rng) -> str:
    """Return a value as CSV has it."""
    if value is None:
        return ""
    if type(value) is bool:
        return str(value) if rng.random() < 0.5 else str(value).lower()
    return str(value_of(value, request))


def csv_text(request: Request, rng: Rng, *, header: bool = True) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n" if rng.random() < 0.3 else "\n")
    if header:
        writer.writerow(request.names)
    writer.writerows([[cell(row[name], request, rng) for name in request.names] for row in request.rows])
    return text.getvalue()


CSV = {"content-type": "text/csv"}


def _csv(case: Case, request: Request, rng: Rng) -> Message:
    return Message("/invocations", csv_text(request, rng).encode(), CSV)


def _csv_bare(case: Case, request: Request, rng: Rng) -> Message:
    return Message("/invocations", csv_text(request, rng, header=False).encode(), CSV)


def _csv_single(case: Case, request: Request, rng: Rng) -> Message:
    text = csv_text(request, rng, header=False)
    return Message("/invocations", f"{case.inputs[0]['name']}\n{text}".encode(), CSV)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a V2 request: its values in row-major order, None for null."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[Any]

    @property
    def data(self) -> bytes:
        """Return its bytes."""
        if self.datatype == "BYTES":
            return b"".join(len(each).to_bytes(4, "little") + each for each in map(_element, self.values))
        nulls = [np.nan if value is None else value for value in self.values]
        try:
            return np.array(nulls, DTYPES[self.datatype]).tobytes()
        except (TypeError, ValueError) as error:
            raise Impossible(str(error)) from None


def _element(value: Any) -> bytes:
    if value is None:
        return NULL
    return str(value.isoformat() if hasattr(value, "isoformat") else value).encode()


def tensors(case: Case, request: Request, *, apart: bool) -> list[Tensor]:
    """Return the rows as V2's tensors: one, or one a column."""
    count = len(request.rows)
    first = case.inputs[0]
    if not apart:
        values = [row[name] for row in request.rows for name in request.names]
        shape = (count,) if case.form is Form.SINGLE else (count, len(request.names))
        return [Tensor(first["name"], first["datatype"], shape, _typed(values, first["datatype"]))]
    known = {each["name"]: each for each in case.inputs}
    made = []
    for name in request.names:
        spec = known.get(name, first)
        ones = (1,) * (len(spec["shape"]) - 1) if name in known else ()
        values = _typed([row[name] for row in request.rows], spec["datatype"])
        made.append(Tensor(name, spec["datatype"], (count, *ones), values))
    return made


def _typed(values: list[Any], datatype: str) -> list[Any]:
    """Return values as a client that reads the metadata gives them."""
    if datatype == "BYTES":
        return [
            value if value is None else value.isoformat() if hasattr(value, "isoformat") else str(value)
            for value in values
        ]
    if any(isinstance(value, str) or hasattr(value, "isoformat") for value in values):
        raise Impossible(f"{values} are no {datatype}")
    whole = datatype.startswith(("INT", "UINT"))
    if whole and None in values:
        raise Impossible(f"{values} are no {datatype}")
    if datatype == "BOOL" and not all(type(value) is bool for value in values):
        raise Impossible(f"{values} are no {datatype}")
    kind = int if whole else bool if datatype == "BOOL" else float
    return [value if value is None else kind(value) for value in values]


def _v2(*, apart: bool, binary: bool) -> Write:
    def write(case: Case, request: Request, rng: Rng) -> Message:
        given = tensors(case, request, apart=apart)
        document: dict[str, Any] = {"inputs": []}
        tail = b""
        for tensor in given:
            item: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
            if binary:
                item["parameters"] = {"binary_data_size": len(tensor.data)}
                tail += tensor.data
            else:
                item["data"] = tensor.values
            document["inputs"].append(item)
        if rng.random() < 0.5:
            document["parameters"] = {"binary_data_output": True}
        if not binary:
            return _json(_infer(case), document)
        head = json.dumps(document).encode()
        headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
        return Message(_infer(case), head + tail, headers)

    return write


def _is_named(case: Case) -> bool:
    return case.entry.named


def _by_place(case: Case) -> bool:
    return case.form is not Form.APART


def _bare(case: Case) -> bool:
    return case.form is Form.TENSOR and not case.entry.named


def _single(case: Case) -> bool:
    return case.form is Form.SINGLE and not case.entry.named


HTTP = (
    Door("v1 objects", _v1_objects, _is_named, TYPED),
    Door("v1 lists", _v1_lists, _by_place, BY_PLACE, any_order=False),
    Door("v1 columns", _v1_columns, _is_named, TYPED),
    Door("v1 tensor", _v1_tensor, _by_place, BY_PLACE, any_order=False),
    Door("torchserve", _torchserve, lambda _: True, (Twist.ODD,), any_order=False, rows=1),
    Door("records", _records, _is_named, TYPED, ignores_extra=True),
    Door("split", _split, _is_named, TYPED, ignores_extra=True),
    Door("csv", _csv, _is_named, ignores_extra=True),
    Door("split bare", _split_bare, _bare, BY_PLACE, any_order=False),
    Door("csv bare", _csv_bare, _bare, (Twist.ODD,), any_order=False),
    Door("csv single", _csv_single, _single, (), any_order=False),
    Door("v2 json apart", _v2(apart=True, binary=False), _is_named),
    Door("v2 binary apart", _v2(apart=True, binary=True), _is_named),
    Door("v2 json tensor", _v2(apart=False, binary=False), _by_place, (Twist.ODD,), any_order=False),
    Door("v2 binary tensor", _v2(apart=False, binary=True), _by_place, (Twist.ODD,), any_order=False),
)
CLAIMS = (
    Door("split claimed", _split_claimed, _bare, ()),
    Door("csv claimed", _csv, _bare, ()),
    Door("records claimed", _records, _bare, ()),
)
"""Requests whose names a model without names cannot check: all of them must be refused."""
