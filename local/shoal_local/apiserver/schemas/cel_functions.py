"""Functions that Kubernetes adds to the expression language, the common ones of them."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from shoal_local.apiserver.schemas.quantities import parse_quantity


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except ValueError:
        return False
    return True


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme and (parts.netloc or parts.path.startswith("/")))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _quantity(text: str) -> float:
    return float(parse_quantity(text))


def _find(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[0] if found else ""


def _format(template: str, values: list[Any]) -> str:
    return re.sub(r"%[sdf]", "%s", template) % tuple(values)


def _index_of(where: Any, what: Any) -> int:
    if isinstance(where, str):
        return where.find(what)
    return where.index(what) if what in where else -1


def _substring(text: str, start: int, end: int | None = None) -> str:
    return text[start:end]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "isGreaterThan": lambda a, b: a > b,
    "isLessThan": lambda a, b: a < b,
    "compareTo": lambda a, b: (a > b) - (a < b),
    "asInteger": int,
    "isURL": _is_url,
    "isIP": _is_ip,
    "find": _find,
    "findAll": lambda text, pattern: re.findall(pattern, text),
    "format": _format,
    "indexOf": _index_of,
    "isSorted": lambda items: items == sorted(items),
    "join": lambda items, separator="": separator.join(items),
    "lowerAscii": lambda text: text.lower(),
    "upperAscii": lambda text: text.upper(),
    "replace": lambda text, old, new: text.replace(old, new),
    "split": lambda text, separator: text.split(separator),
    "substring": _substring,
    "sum": sum,
    "trim": lambda text: text.strip(),
}
