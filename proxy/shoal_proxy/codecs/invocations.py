"""``POST /invocations`` as MLflow and SageMaker send it: tables (split, records, CSV), instances, inputs, raw."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Final

from shoal_proxy.codecs import raw
from shoal_proxy.codecs.base import (
    NO_BYTES,
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
from shoal_proxy.codecs.cells import FLAGS, is_number, read_cell
from shoal_proxy.codecs.columns import (
    Match,
    are_default_names,
    check_twice,
    have_default_names,
    listed,
    match,
    same_keys,
)
from shoal_proxy.codecs.v1 import V1, Form, decode_matches
from shoal_proxy.codecs.v2 import take_parameters
from shoal_proxy.errors import InvalidRequest, ProxyError
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import Array

CSV: Final = "text/csv"
JSON: Final = "application/json"
_FORMS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs")
_CODES: Final = {404: "RESOURCE_DOES_NOT_EXIST", 503: "TEMPORARILY_UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}


class _Table:
    """Rows, and by the name of a column what each row holds it under; without names they are positional."""

    __slots__ = ("keys", "rows")

    def __init__(self, keys: dict[str, Any] | None, rows: list[Any]) -> None:
        self.keys = keys
        self.rows = rows


class Invocations:
    """Decode and encode ``POST /invocations``."""

    name = "invocations"

    def __init__(self, max_padding_bytes: int, *, ignore_extra: bool = True) -> None:
        self._max_padding_bytes = max_padding_bytes
        self._ignore_extra = ignore_extra
        self._v1 = V1(max_padding_bytes, ignore_extra=ignore_extra)

    def decode(self, call: Call, signature: ModelSignature) -> Decoded:
        """Return the request's rows, whichever form they come in."""
        if call.media_type == CSV and not _takes_csv(signature):
            return self._rows(_from_csv(call, signature), call, signature, texts=True)
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
            rows = _from_split(table) if given[0] == _FORMS[0] else _from_records(table, signature)
            decoded = self._rows(rows, call, signature, texts=False)
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

    def _rows(self, table: _Table, call: Call, signature: ModelSignature, *, texts: bool) -> Decoded:
        """Return a table's rows, its columns matched by name; the values of a CSV are ``texts``."""
        rows = table.rows
        if not rows:
            raise InvalidRequest("the table must have at least one row")
        matches = self._matches(table, signature)
        if texts:
            _read_texts(rows, matches)
        return decode_matches(matches, rows, signature, call.body, self._max_padding_bytes)

    def _matches(self, table: _Table, signature: ModelSignature) -> list[Match]:
        keys, first = table.keys, table.rows[0]
        if not first:
            raise InvalidRequest("the table has no columns")
        only = _only_input(signature)
        if keys is None or (only is not None and have_default_names(keys, signature)):
            if only is not None and not (only.holds_json and len(first) > 1):
                order = list(range(len(first)) if keys is None else keys.values())
                one = len(order) == 1
                return [Match(only, key=order[0] if one else None, columns=() if one else order, named=False)]
            if keys is None:
                told = listed(list(signature.columns or signature.inputs))
                raise InvalidRequest(f"the rows must have names of columns: the model takes {told}")
        if only is not None and not only.columns and only.name not in keys and len(only.shape) > 1:
            raise _unknown(only, list(keys))
        return match(keys, first, signature, ignore_extra=self._ignore_extra)


def _json(call: Call) -> Any:
    try:
        return parse_json(call.body)
    except InvalidRequest as error:
        if call.media_type == JSON:
            raise
        raise InvalidRequest(f"{error}; a table as CSV needs the header Content-Type: {CSV}") from None


def _from_split(table: Any) -> _Table:
    columns, data = (table.get("columns"), table.get("data")) if type(table) is dict else (None, None)
    if type(data) is not list or not data or not (columns is None or type(columns) is list):
        raise InvalidRequest('"dataframe_split" must be an object with "columns" and "data", a list of rows')
    names = None if columns is None else [_name(each) for each in columns]
    width = len(names) if names is not None else len(data[0]) if type(data[0]) is list else 0
    for number, row in enumerate(data):
        if type(row) is not list or len(row) != width:
            raise InvalidRequest(f"row {number} must be a list of {width} values")
    return _Table(_numbered(names), data)


def _name(column: Any) -> str:
    """Return the name of a column; pandas' default ones are numbers."""
    if type(column) is str or type(column) is int:
        return str(column)
    raise InvalidRequest(f"the name of a column must be a string or a whole number, not {shown(column)}")


def _numbered(names: list[str] | None) -> dict[str, Any] | None:
    """Return the place of each named column."""
    if names is None:
        return None
    check_twice(names)
    return {name: at for at, name in enumerate(names)}


def _from_records(table: Any, signature: ModelSignature) -> _Table:
    if type(table) is not list or not table or type(table[0]) is not dict:
        raise InvalidRequest('"dataframe_records" must be a list of objects, one a row')
    rows = same_keys(table, signature)
    return _Table({name: name for name in rows[0]}, rows)


def _from_csv(call: Call, signature: ModelSignature) -> _Table:
    """Return the rows of a CSV text; a first line of names may be missing where all columns are one input's numbers."""
    body = bytes(call.body)
    check_rows(body.count(b"\n") + body.count(b"\r") - body.count(b"\r\n"))
    check_values(body)
    try:
        table = [row for row in csv.reader(StringIO(body.decode("utf-8-sig"), newline=""), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(f"the body is not CSV: {error}") from None
    if not table:
        raise InvalidRequest("the CSV has no rows")
    header = _says_header(call)
    names = None
    if header is True or (header is None and _is_header(table, signature)):
        names, table = table[0], table[1:]
    width = len(table[0] if names is None else names)
    for number, row in enumerate(table):
        if len(row) != width:
            raise InvalidRequest(f"row {number} has {len(row)} values, not {width}")
    return _Table(_numbered(names), table)


def _says_header(call: Call) -> bool | None:
    """Return what the content type says of a first line of names (RFC 4180: `header=present`); None: nothing."""
    parameters = call.headers.get(b"content-type", NO_BYTES).lower().replace(b" ", NO_BYTES).split(b";")[1:]
    return True if b"header=present" in parameters else False if b"header=absent" in parameters else None


def _is_header(table: list[list[str]], signature: ModelSignature) -> bool:
    """Return whether the first line of a CSV holds names: it is no row of numbers, or just the model's columns.

    Raises:
        InvalidRequest: it is a line of numbers that may be either.
    """
    only, line = _only_input(signature), table[0]
    if only is None or only.datatype == "BYTES" or line == [only.name] or set(line) == set(only.columns):
        return True
    if not (any(line) and all(not text or is_number(text) or text.lower() in FLAGS for text in line)):
        return True
    if only.columns or (len(table) > 1 and len(line) > 1 and are_default_names([text.strip() for text in line])):
        raise InvalidRequest(
            f"the first line of the CSV, {listed(line)}, may be names of columns or a row: say which with Content-Type:"
            " text/csv; header=present, or header=absent"
        )
    return False


def _read_texts(rows: list[Any], matches: Sequence[Match]) -> None:
    """Replace the texts of a CSV by what they stand for, where an input takes them."""
    used = [(key, each.spec, each.flags) for each in matches for key in each.keys]
    for number, row in enumerate(rows):
        for key, spec, flags in used:
            try:
                row[key] = read_cell(spec, row[key], flags=flags)
            except InvalidRequest as error:
                raise InvalidRequest(f"row {number}, field {key + 1}: {error.message}") from None


def _unknown(only: InputSpec, names: list[str]) -> InvalidRequest:
    return InvalidRequest(
        f"the model does not have names of columns, so {listed(names)} cannot be matched with its input {only.name!r}:"
        " send rows as lists, or name the `columns` of the input in model.toml"
    )


def _only_input(signature: ModelSignature) -> InputSpec | None:
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    return required[0] if len(required) == 1 else None


def _takes_csv(signature: ModelSignature) -> bool:
    """Return whether the model has an input whose rows are CSV texts themselves."""
    spec = raw.bytes_input(signature)
    return spec is not None and any(raw.accepts(kind, CSV) for kind in spec.content_types)
