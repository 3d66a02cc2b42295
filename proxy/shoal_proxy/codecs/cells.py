"""Convert single values to an input's datatype: nulls, integers, dates, CSV."""

from math import isinf, nan
from typing import Any, Final

from shoal_proxy.codecs.base import shown
from shoal_proxy.errors import InvalidRequest
from shoal_proxy.model.signature import InputSpec
from shoal_schema.wire.columns import NULL
from shoal_schema.wire.datatypes import FIRST_ROUNDED

FLOATING: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
FLAGS: Final = {"true": True, "false": False}


def texts(spec: InputSpec, flat: list[Any]) -> list[bytes]:
    """Return JSON values as the elements of a ``BYTES`` input.

    Raises:
        InvalidRequest: a value is not a string, an allowed null, or a number for a datetime.
    """
    elements: list[bytes] = []
    for at, value in enumerate(flat):
        if type(value) is str:
            # The runtime receives a datetime's numbers as digits, so a text of digits would be ambiguous.
            if spec.unit and _are_digits(value):
                raise InvalidRequest(f"input {spec.name!r} {_takes(spec)}{_place(spec, flat, at)}: {shown(value)}")
            elements.append(value.encode())
        elif value is None:
            elements.append(NULL if spec.nullable else _refuse_null(spec, flat, at))
        elif spec.unit and (type(value) is int or (type(value) is float and _is_whole(value))):
            elements.append(b"%d" % int(value))
        else:
            raise InvalidRequest(f"input {spec.name!r} {_takes(spec)}{_place(spec, flat, at)}: {shown(value)}")
    return elements


def numbers(
    spec: InputSpec, flat: list[Any], allowed: frozenset[type], words: str, *, flags: bool = False
) -> list[Any]:
    """Return JSON values as numbers of the input's datatype.

    A null becomes NaN if the input is nullable. ``flags``: whether true and false are accepted as 1 and 0.

    Raises:
        InvalidRequest: a value is null, of another type, or a fraction for an integer.
    """
    # JSON may write an integer as 1.0.
    whole = float not in allowed and int in allowed
    made: list[Any] = []
    for at, value in enumerate(flat):
        if type(value) in allowed:
            made.append(value)
        elif value is None:
            made.append(nan if spec.nullable else _refuse_null(spec, flat, at))
        elif (whole and type(value) is float and _is_whole(value)) or (flags and type(value) is bool):
            made.append(int(value))
        else:
            beyond = ""
            if int in allowed and type(value) is float and abs(value) >= FIRST_ROUNDED:
                # The JSON parser may have rounded it, so it is not accepted as an integer.
                big = abs(value) >= 2.0**63
                beyond = " of at most 64 bits" if big else ", none from 2**53 on with a point or an exponent"
            where = f"{_place(spec, flat, at)}: {shown(value)}"
            raise InvalidRequest(f"input {spec.name!r} is {spec.datatype} and accepts only {words}{beyond}{where}")
    return made


def read_cell(spec: InputSpec, text: str, *, flags: bool = False) -> Any:
    """Return a CSV text as a JSON value; an empty text is null.

    ``flags``: whether true and false are accepted as 1 and 0.

    Raises:
        InvalidRequest: the text is not a value of the input's datatype.
    """
    if not text:
        return None
    if spec.datatype == "BYTES":
        return int(text) if spec.unit and _are_digits(text) else text
    # CSV writers use True, TRUE and true.
    flag = FLAGS.get(text.lower()) if flags or spec.datatype == "BOOL" else None
    if flag is not None or spec.datatype == "BOOL":
        return flag if flag is not None else _refuse_text(spec, text)
    # Python's int() and float() also accept "1_000" and non-ASCII digits.
    if "_" in text or not text.isascii():
        _refuse_text(spec, text)
    if spec.datatype not in FLOATING:
        try:
            return int(text)
        except ValueError:
            pass  # it may be "1.0"
    try:
        number = float(text)
    except ValueError:
        return _refuse_text(spec, text)
    # float() turns a number out of range into an infinity.
    if isinf(number) and "inf" not in text.lower():
        raise InvalidRequest(f"input {spec.name!r} is {spec.datatype}; {shown(text)} is out of its range")
    if spec.datatype in FLOATING:
        return number
    return int(number) if _is_whole(number) else _refuse_text(spec, text)


def _are_digits(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal()


def is_number(text: str) -> bool:
    """Return whether a CSV text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _place(spec: InputSpec, flat: list[Any], at: int) -> str:
    """Return row and column of value ``at`` for a message; empty if unknown."""
    width = 1
    for size in spec.shape[1:]:
        width *= size
    if not spec.shape or spec.shape[0] != -1 or width < 1 or len(flat) % width:
        return ""
    if spec.columns:
        return f" (row {at // width}, column {shown(spec.columns[at % width])})"
    return f" (row {at // width})"


def _is_whole(value: float) -> bool:
    return value.is_integer() and abs(value) < FIRST_ROUNDED


def _takes(spec: InputSpec) -> str:
    if spec.logical_type != "datetime":
        return f"is {spec.datatype} and accepts only strings"
    numbers_too = f" or integers of {spec.unit} since 1970" if spec.unit else ""
    return f"is a datetime and accepts only strings in ISO 8601{numbers_too}"


def _refuse_null(spec: InputSpec, flat: list[Any], at: int) -> Any:
    raise InvalidRequest(f"input {spec.name!r} does not accept null{_place(spec, flat, at)}")


def _refuse_text(spec: InputSpec, text: str) -> Any:
    raise InvalidRequest(f"input {spec.name!r} is {spec.datatype} and cannot be {shown(text)}")
