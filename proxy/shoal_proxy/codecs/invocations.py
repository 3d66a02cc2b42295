"""``POST /invocations`` as MLflow and SageMaker send it: tables (split, records, CSV), instances, inputs, raw."""

import csv
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from math import isinf, nan
from typing import Any, Final

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import (
    Call,
    Decoded,
    Reply,
    check_integers,
    check_rows,
    check_values,
    error_document,
    json_reply,
    parse_json,
    shown,
)
from shoal_proxy.codecs.v1 import V1, Form, decode_rows
from shoal_proxy.codecs.v2 import take_parameters
from shoal_proxy.errors import InvalidRequest, ProxyError
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import Array

CSV: Final = "text/csv"
JSON: Final = "application/json"
_FORMS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs")
_FLOATING: Final = frozenset({"FP16", "FP32", "FP64"})
_FLAGS: Final = {"true": True, "false": False}
_CODES: Final = {404: "RESOURCE_DOES_NOT_EXIST", 503: "TEMPORARILY_UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}


class Invocations:
    """Decode and encode ``POST /invocations``."""

    name = "invocations"

    def __init__(self, max_padding_bytes: int) -> None:
        self._max_padding_bytes = max_padding_bytes
        self._v1 = V1(max_padding_bytes)

    def decode(self, call: Call, signature: ModelSignature) -> Decoded:
        """Return the request's rows, whichever form they come in."""
        if call.media_type == CSV and not _takes_csv(signature):
            return self._rows(_from_csv(bytes(call.body), signature), call, signature)
        if raw.is_raw(call.media_type):
            return raw.decode(call, signature, Form.ROWS)
        document = _json(call)
        given = [form for form in _FORMS if form in document] if type(document) is dict else []
        if len(given) != 1:
            raise InvalidRequest(f"the body must be an object with one of {', '.join(map(repr, _FORMS))}")
        if given[0] in ("instances", "inputs"):
            decoded = self._v1.decode(call, signature)
            decoded.style = Form.ROWS
        else:
            table = document[given[0]]
            rows = _from_split(table, signature) if given[0] == _FORMS[0] else _from_records(table, signature)
            decoded = self._rows(rows, call, signature)
        if (params := document.get("params")) is not None:
            _, decoded.timeout_ms, decoded.parameters = take_parameters(params)
            check_integers(call.body)
        return decoded

    def encode(
        self,
        decoded: Decoded,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> Reply:
        """Return ``predictions`` row by row."""
        return self._v1.encode(decoded, outputs, lengths, signature)

    def error(self, error: ProxyError) -> Reply:
        """Return MLflow's error object."""
        code = _CODES.get(error.status, "BAD_REQUEST" if error.status < 500 else "INTERNAL_ERROR")
        told = error_document(error)
        return json_reply(error.status, {"error_code": code, "message": told.pop("error"), **told})

    def _rows(self, rows: list[Any], call: Call, signature: ModelSignature) -> Decoded:
        return decode_rows(rows, signature, call.body, self._max_padding_bytes)


def _json(call: Call) -> Any:
    try:
        return parse_json(call.body)
    except InvalidRequest as error:
        if call.media_type == JSON:
            raise
        raise InvalidRequest(f"{error}; a table as CSV needs the header Content-Type: {CSV}") from None


def _from_split(table: Any, signature: ModelSignature) -> list[Any]:
    columns, data = (table.get("columns"), table.get("data")) if type(table) is dict else (None, None)
    if type(data) is not list or not data or not (columns is None or type(columns) is list):
        raise InvalidRequest('"dataframe_split" must be an object with "columns" and "data", a list of rows')
    width = len(columns) if columns is not None else len(data[0]) if type(data[0]) is list else 0
    for number, row in enumerate(data):
        if type(row) is not list or len(row) != width:
            raise InvalidRequest(f"row {number} must be a list of {width} values")
    return _instances([str(each) for each in columns or range(width)], data, signature, _cell)


def _from_records(table: Any, signature: ModelSignature) -> list[Any]:
    if type(table) is not list or not table or type(table[0]) is not dict:
        raise InvalidRequest('"dataframe_records" must be a list of objects, one a row')
    columns = list(table[0])
    for number, record in enumerate(table):
        if type(record) is not dict or record.keys() != table[0].keys():
            raise InvalidRequest(f"row {number} must be an object with the columns {shown(columns)}")
    return _instances(columns, [[record[name] for name in columns] for record in table], signature, _cell)


def _from_csv(body: bytes, signature: ModelSignature) -> list[Any]:
    """Return the rows of a CSV text; a first line of names may lack where all columns are one input's numbers."""
    check_rows(body.count(b"\n") + body.count(b"\r") - body.count(b"\r\n"))
    check_values(body)
    try:
        table = [row for row in csv.reader(StringIO(body.decode("utf-8-sig"), newline=""), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(f"the body is not CSV: {error}") from None
    if not table:
        raise InvalidRequest("the CSV has no rows")
    columns = [str(number) for number in range(len(table[0]))]
    if not _is_data(table[0], signature):
        columns, table = table[0], table[1:]
    for number, row in enumerate(table):
        if len(row) != len(columns):
            raise InvalidRequest(f"row {number} has {len(row)} values, not {len(columns)}")
    return _instances(columns, table, signature, _read_cell)


def _is_data(line: list[str], signature: ModelSignature) -> bool:
    """Return whether the first line of a CSV is a row already: numbers, for a model of one input of numbers."""
    only = _only_input(signature)
    if only is None or only.datatype == "BYTES" or line == [only.name]:
        return False
    try:
        for text in line:
            _read_cell(only, text)
    except InvalidRequest:
        return False
    return True


def _instances(
    columns: list[str], rows: list[list[Any]], signature: ModelSignature, cell: Callable[[InputSpec, Any], Any]
) -> list[Any]:
    """Return a table's rows as V1's ``instances``: columns are inputs by their names, or together the model's one."""
    if len(set(columns)) < len(columns) and not signature.inputs.keys().isdisjoint(columns):
        raise InvalidRequest(f"the table has a column twice: {shown(columns)}")
    if set(columns) <= signature.inputs.keys():
        specs = [signature.inputs[name] for name in columns]
        return [
            {spec.name: _nested(spec, cell(spec, value)) for spec, value in zip(specs, row, strict=True)}
            for row in rows
        ]
    only = _only_input(signature)
    if only is None or (only.datatype == "BYTES" and len(columns) > 1):
        raise InvalidRequest(
            f"the table has the columns {shown(columns)}; the model takes {', '.join(map(repr, signature.inputs))}"
        )
    if len(columns) == 1:
        return [_nested(only, cell(only, row[0])) for row in rows]
    return [[cell(only, value) for value in row] for row in rows]


def _only_input(signature: ModelSignature) -> InputSpec | None:
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    return required[0] if len(required) == 1 else None


def _takes_csv(signature: ModelSignature) -> bool:
    """Return whether the model has an input whose rows are CSV texts themselves."""
    spec = raw.bytes_input(signature)
    return spec is not None and any(raw.accepts(kind, CSV) for kind in spec.content_types)


def _nested(spec: InputSpec, value: Any) -> Any:
    """Return one value of a table in the shape of a row of its input."""
    if type(value) is not list and spec.datatype != "BYTES":
        for _ in spec.shape[1:]:
            value = [value]
    return value


def _cell(spec: InputSpec, value: Any) -> Any:
    """Return a value of a table in JSON: what is missing in a column of floating-point numbers is null."""
    return nan if value is None and spec.datatype in _FLOATING else value


def _read_cell(spec: InputSpec, text: str) -> Any:
    """Return a value of a CSV text."""
    if spec.datatype == "BYTES":
        return text
    if spec.datatype == "BOOL" and text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    if not text and spec.datatype in _FLOATING:
        return nan
    try:
        if "_" in text:
            raise ValueError
        number = float(text) if spec.datatype in _FLOATING else int(text)
    except ValueError:
        raise InvalidRequest(f"input {spec.name!r} is {spec.datatype} and cannot be {shown(text)}") from None
    if type(number) is float and isinf(number) and "inf" not in text.lower():
        raise InvalidRequest(f"input {spec.name!r} is {spec.datatype}, which {shown(text)} is beyond")
    return number
