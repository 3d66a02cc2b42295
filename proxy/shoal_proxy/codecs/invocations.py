"""``POST /invocations`` of MLflow and SageMaker: tables (split, records, CSV), instances, inputs, raw bodies."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Final

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import (
    NO_BYTES,
    DecodedRequest,
    HttpResponse,
    InferCall,
    check_integers,
    check_rows,
    check_values,
    error_document,
    json_response,
    parse_json,
    shown,
)
from shoal_proxy.codecs.cells import FLAGS, is_number, read_cell
from shoal_proxy.codecs.columns import (
    InputMatch,
    are_default_names,
    check_twice,
    have_default_names,
    listed,
    match,
    same_keys,
)
from shoal_proxy.codecs.v1 import V1, V1Form, decode_matches
from shoal_proxy.codecs.v2 import take_parameters
from shoal_proxy.errors import InvalidRequest, ProxyError
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import Array

CSV: Final = "text/csv"
JSON: Final = "application/json"
_FORMS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs")
_CODES: Final = {404: "RESOURCE_DOES_NOT_EXIST", 503: "TEMPORARILY_UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}


class _Table:
    """The rows of a table, and the key of each named column in a row.

    The keys are None if the columns have no names.
    """

    __slots__ = ("keys", "rows")

    def __init__(self, keys: dict[str, Any] | None, rows: list[Any]) -> None:
        self.keys = keys
        self.rows = rows


class Invocations:
    """Codec of ``POST /invocations``."""

    def __init__(self, max_padding_bytes: int, *, ignore_extra: bool = True) -> None:
        self._max_padding_bytes = max_padding_bytes
        self._ignore_extra = ignore_extra
        self._v1 = V1(max_padding_bytes, ignore_extra=ignore_extra)

    def decode(self, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode a CSV, JSON or raw body."""
        if call.media_type == CSV:
            # CSV is a table, unless the model has an input whose rows are CSV texts themselves.
            spec = raw.bytes_input(signature)
            if spec is None or not any(raw.accepts(kind, CSV) for kind in spec.content_types):
                return self._rows(_from_csv(call, signature), call, signature, texts=True)
        if raw.is_raw(call.media_type):
            return raw.decode(call, signature, V1Form.ROWS)
        try:
            document = parse_json(call.body)
        except InvalidRequest as error:
            if call.media_type == JSON:
                raise
            raise InvalidRequest(f"{error}. A table as CSV needs the header Content-Type: {CSV}") from None
        # Exactly one of the forms must be present.
        given = [form for form in _FORMS if form in document] if type(document) is dict else []
        if len(given) != 1:
            raise InvalidRequest(f"the body must be an object with one of {', '.join(map(repr, _FORMS))}")
        if given[0] in ("instances", "inputs"):
            decoded = self._v1.decode(call, signature)
            # MLflow's response has `predictions`, also for inputs by column.
            decoded.style = V1Form.ROWS
        else:
            table = document[given[0]]
            if given[0] == "dataframe_split":
                rows = _from_split(table)
            else:
                if type(table) is not list or not table or type(table[0]) is not dict:
                    raise InvalidRequest('"dataframe_records" must be a list of objects, one per row')
                records = same_keys(table, signature)
                rows = _Table({name: name for name in records[0]}, records)
            decoded = self._rows(rows, call, signature, texts=False)
        if (params := document.get("params")) is not None:
            _, decoded.timeout_ms, decoded.parameters = take_parameters(params)
            check_integers(call.body)
        return decoded

    def encode(
        self,
        decoded: DecodedRequest,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> HttpResponse:
        """Return the response with a list of ``predictions``, one per row."""
        return self._v1.encode(decoded, outputs, lengths, signature)

    def error(self, error: ProxyError) -> HttpResponse:
        """Return MLflow's error object as a response."""
        code = _CODES.get(error.status, "BAD_REQUEST" if error.status < 500 else "INTERNAL_ERROR")
        document = error_document(error)
        return json_response(error.status, {"error_code": code, "message": document.pop("error"), **document})

    def _rows(self, table: _Table, call: InferCall, signature: ModelSignature, *, texts: bool) -> DecodedRequest:
        """Decode a table; ``texts``: whether its values are texts of CSV."""
        rows = table.rows
        if not rows:
            raise InvalidRequest("the table must have at least one row")
        matches = self._matches(table, signature)
        if texts:
            used = [(key, each.spec, each.flags) for each in matches for key in each.keys]
            for number, row in enumerate(rows):
                for key, spec, flags in used:
                    try:
                        row[key] = read_cell(spec, row[key], flags=flags)
                    except InvalidRequest as error:
                        raise InvalidRequest(f"row {number}, field {key + 1}: {error.message}") from None
        return decode_matches(matches, rows, signature, call.body, self._max_padding_bytes)

    def _matches(self, table: _Table, signature: ModelSignature) -> list[InputMatch]:
        keys, first = table.keys, table.rows[0]
        if not first:
            raise InvalidRequest("the table has no columns")
        only = _only_input(signature)
        # Without names, columns are the values of the only required input, in order.
        if keys is None or (only is not None and have_default_names(keys, signature)):
            if only is not None and not (only.holds_json and len(first) > 1):
                order = list(range(len(first)) if keys is None else keys.values())
                one = len(order) == 1
                return [InputMatch(only, key=order[0] if one else None, columns=() if one else order, named=False)]
            if keys is None:
                expected = listed(list(signature.columns or signature.inputs))
                raise InvalidRequest(f"the rows need column names: the model has {expected}")
        if only is not None and not only.columns and only.name not in keys and len(only.shape) > 1:
            raise InvalidRequest(
                f"the model has no column names, so {listed(list(keys))} cannot be matched with its input"
                f" {only.name!r}. Send rows as lists, or name the `columns` of the input in model.toml"
            )
        return match(keys, first, signature, ignore_extra=self._ignore_extra)


def _from_split(table: Any) -> _Table:
    columns, data = (table.get("columns"), table.get("data")) if type(table) is dict else (None, None)
    if type(data) is not list or not data or not (columns is None or type(columns) is list):
        raise InvalidRequest('"dataframe_split" must be an object with "columns" and "data", a list of rows')
    for column in columns or ():
        if type(column) is not str and type(column) is not int:  # pandas' default names are integers
            raise InvalidRequest(f"a column's name must be a string or an integer, not {shown(column)}")
    names = None if columns is None else [str(column) for column in columns]
    width = len(names) if names is not None else len(data[0]) if type(data[0]) is list else 0
    for number, row in enumerate(data):
        if type(row) is not list or len(row) != width:
            raise InvalidRequest(f"row {number} must be a list of {width} values")
    return _Table(_numbered(names), data)


def _numbered(names: list[str] | None) -> dict[str, Any] | None:
    if names is None:
        return None
    check_twice(names)
    return {name: at for at, name in enumerate(names)}


def _from_csv(call: InferCall, signature: ModelSignature) -> _Table:
    """Parse CSV; without a header line, all columns are numbers of one input."""
    body = bytes(call.body)
    check_rows(body.count(b"\n") + body.count(b"\r") - body.count(b"\r\n"))
    check_values(body)
    try:
        # utf-8-sig removes a byte order mark; empty lines are no rows.
        table = [row for row in csv.reader(StringIO(body.decode("utf-8-sig"), newline=""), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(f"the body is not CSV: {error}") from None
    if not table:
        raise InvalidRequest("the CSV has no rows")
    # The content type may state whether there is a header line (RFC 4180, section 3).
    parameters = call.headers.get(b"content-type", NO_BYTES).lower().replace(b" ", NO_BYTES).split(b";")[1:]
    names = None
    if b"header=present" in parameters or (b"header=absent" not in parameters and _is_header(table, signature)):
        names, table = table[0], table[1:]
    width = len(table[0] if names is None else names)
    for number, row in enumerate(table):
        if len(row) != width:
            raise InvalidRequest(f"row {number} has {len(row)} values, not {width}")
    return _Table(_numbered(names), table)


def _is_header(table: list[list[str]], signature: ModelSignature) -> bool:
    """Return whether the first line of a CSV holds column names.

    Raises:
        InvalidRequest: the line is ambiguous.
    """
    only, line = _only_input(signature), table[0]
    if only is None or only.datatype == "BYTES" or line == [only.name] or set(line) == set(only.columns):
        return True
    if not (any(line) and all(not text or is_number(text) or text.lower() in FLAGS for text in line)):
        return True
    if only.columns or (len(table) > 1 and len(line) > 1 and are_default_names([text.strip() for text in line])):
        raise InvalidRequest(
            f"the first line of the CSV, {listed(line)}, may be column names or a row. Set Content-Type to"
            " text/csv; header=present or text/csv; header=absent"
        )
    return False


def _only_input(signature: ModelSignature) -> InputSpec | None:
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    return required[0] if len(required) == 1 else None
