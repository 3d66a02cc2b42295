"""Kubernetes quantities, such as ``500m``, ``1Gi`` and ``1e3``, and their canonical form."""

import re
from decimal import Decimal

_FORM = re.compile(r"(?P<number>[+-]?(\d+(\.\d*)?|\.\d+))(?P<suffix>[eE][+-]?\d+|[KMGTPE]i|[numkMGTPE]?)")
_DECIMAL = {suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)}
_BINARY = {f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}
_SIZES = _DECIMAL | _BINARY


def parse_quantity(text: str) -> Decimal:
    """Return the number of a quantity. Raises ValueError: the text is not a quantity."""
    found = _FORM.fullmatch(text)
    if not found:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    suffix = found["suffix"]
    return Decimal(found["number"]) * (_SIZES[suffix] if suffix in _SIZES else Decimal(10) ** int(suffix[1:]))


def canonical_quantity(value: str | int | float) -> str:
    """Return a quantity as a whole number with the largest fitting suffix.

    Raises ValueError: the value is not a quantity.
    """
    text = str(value)
    number = parse_quantity(text)
    if number == 0:
        return "0"
    # A fraction of a binary unit is stored in decimal units.
    binary = text.endswith("i") and number == int(number)
    for suffix, size in reversed((_BINARY if binary else _DECIMAL).items()):
        if number % size == 0:
            return f"{int(number / size)}{suffix}"
    # Smaller than a nano unit: rounded up, as Kubernetes does.
    return str(int(number)) if binary else f"{int(number.scaleb(9)) + 1}n"
