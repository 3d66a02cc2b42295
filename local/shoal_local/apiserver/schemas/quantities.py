"""Kubernetes quantities: ``500m``, ``1Gi``, ``1e3`` and their one canonical form."""

import re
from decimal import Decimal

_FORM = re.compile(r"(?P<number>[+-]?(\d+(\.\d*)?|\.\d+))(?P<suffix>[eE][+-]?\d+|[KMGTPE]i|[numkMGTPE]?)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def parse_quantity(text: str) -> Decimal:
    """Return the number that a quantity means. Raises ValueError: the text is no quantity."""
    found = _FORM.fullmatch(text)
    if not found:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    number, suffix = Decimal(found["number"]), found["suffix"]
    if suffix in _BINARY:
        return number * Decimal(1024 ** _BINARY[suffix])
    return number.scaleb(_DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:]))


def canonical_quantity(value: str | int | float) -> str:
    """Return the form in which the server stores a quantity.

    A whole number with the largest suffix of its family. Raises ValueError: the value is no quantity.
    """
    text = str(value)
    number = parse_quantity(text)
    suffix = re.sub(r"^[+-]?[\d.]+", "", text)
    if number == 0:
        return "0"
    if suffix in _BINARY and number == int(number):
        return _binary(int(number))
    return _decimal(number)


def _binary(number: int) -> str:
    for suffix, power in reversed(_BINARY.items()):
        if number % 1024**power == 0:
            return f"{number // 1024**power}{suffix}"
    return str(number)


def _decimal(number: Decimal) -> str:
    for suffix, power in reversed(_DECIMAL.items()):
        scaled = number.scaleb(-power)
        if scaled == int(scaled):
            return f"{int(scaled)}{suffix}"
    return f"{int(number.scaleb(9)) + 1}n"
