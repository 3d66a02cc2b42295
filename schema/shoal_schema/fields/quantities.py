"""Kubernetes quantities (``500m``, ``1Gi``, ``1e3``), parsed exactly and within the API server's bounds."""

import re
from decimal import ROUND_UP, Decimal

MAX_QUANTITY = 2**63 - 1
"""Largest quantity that the API server keeps; it silently reduces larger ones to this."""
# The pattern of the API server, with bounded lengths.
PATTERN = r"^(\+|-)?(([0-9]{1,32}(\.[0-9]{0,32})?)|(\.[0-9]{1,32}))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$"
SHARE = r"^(0([.][0-9]{1,9})?|1([.]0{1,9})?)\Z"
"""Pattern of a number from 0 to 1: fields of a resource hold fractions as text."""
POSITIVE_SHARE = r"^(0[.][0-9]{0,8}[1-9][0-9]{0,8}|1([.]0{1,9})?)\Z"
"""Pattern of a number above 0, at most 1."""
DECIMAL = r"^[0-9]{1,9}([.][0-9]{1,9})?(e-?[0-9]{1,2})?\Z"
"""Pattern of a number of at least 0."""
_PARTS = re.compile(r"(?P<number>[+-]?[0-9.]+)(?P<suffix>.*)")
DECIMAL_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
"""Suffixes of powers of 10."""
BINARY_POWERS = {suffix: power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
"""Suffixes of powers of 1024."""


def parse_quantity(value: str | int) -> Decimal:
    """Return the value of a quantity.

    Raises:
        ValueError: the text is not a quantity, or is larger than `MAX_QUANTITY`.
    """
    number = exact_quantity(value if isinstance(value, str) or abs(value) <= MAX_QUANTITY else "")
    if abs(number) > MAX_QUANTITY:
        raise ValueError("a quantity that is too large")
    return number


def kept_quantity(value: str | int) -> Decimal:
    """Return the value that the API server keeps: rounded up to thousandths, at most `MAX_QUANTITY`.

    Raises:
        ValueError: the text is not a quantity.
    """
    # The API server stores thousandths.
    return (min(exact_quantity(value), Decimal(MAX_QUANTITY)) * 1000).to_integral_value(ROUND_UP) / 1000


def exact_quantity(value: str | int) -> Decimal:
    """Return the value of a quantity of any size.

    Raises:
        ValueError: the text is not a quantity.
    """
    text = str(value)
    found = _PARTS.fullmatch(text) if re.search(PATTERN, text) else None
    if found is None:
        raise ValueError("not a quantity")
    number, suffix = Decimal(found["number"]), found["suffix"]
    if suffix in BINARY_POWERS:
        number *= 1024 ** BINARY_POWERS[suffix]
    else:
        # A decimal suffix, or an exponent such as e3.
        number = number.scaleb(DECIMAL_POWERS[suffix] if suffix in DECIMAL_POWERS else int(suffix[1:]))
    return number


class Quantity:
    """A quantity as written, which is sent to Kubernetes unchanged."""

    # Not a str subclass, which msgspec would accept without calling `read_quantity`.
    __slots__ = ("written",)

    def __init__(self, written: str | int) -> None:
        self.written = written

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.written == other.written

    def __hash__(self) -> int:
        return hash(self.written)

    def __repr__(self) -> str:
        return repr(self.written)


def read_quantity(value: object) -> Quantity:
    """Validate a quantity, and return it as written.

    Raises:
        ValueError: the value is not a quantity, or is too large.
    """
    try:
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise ValueError("not a quantity")
        parse_quantity(value)
    except ValueError as error:
        allowed = f"like 500m, 2 or 1Gi, of at most {MAX_QUANTITY}"
        raise ValueError(f"is {error}: it must be a string or an integer {allowed}") from None
    return Quantity(value)
