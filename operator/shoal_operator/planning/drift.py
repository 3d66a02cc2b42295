"""Whether a stored object still says what we asked for.

Everything that we declare must be there with our value; the hash annotation tells when what we
declare has itself changed. What others add beside it (defaults of the server, an annotation of
``kubectl rollout restart``, a sidecar's injected field) is theirs and is left alone, which is also
how server-side apply sees it. Where that would decide about traffic, ``exact`` is asked as well.
"""

from decimal import ROUND_UP, Decimal
from typing import Any

from shoal_schema.declaring import Json

_QUANTITY_FIELDS = frozenset({"limits", "requests", "sizeLimit"})
_SUFFIXES = {
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate(("m", "u", "n"), 1)},
}  # fmt: skip
_LARGEST = Decimal(2**63 - 1)


def holds(desired: Any, live: Any, *, quantities: bool = False) -> bool:
    """Whether ``live`` says everything that ``desired`` says.

    Args:
        desired: what we declare.
        live: what is stored.
        quantities: compare scalars as quantities (``0.5`` equals ``500m``), as the API server
            rewrites them.
    """
    if isinstance(desired, dict):
        return _holds_object(desired, live, quantities=quantities)
    if isinstance(desired, (list, tuple)):
        return _holds_list(list(desired), live, quantities=quantities)
    if quantities and live is not None:
        return quantity(desired) == quantity(live)
    return bool(desired == live) or (desired == "" and live is None)


def _holds_object(desired: Json, live: Any, *, quantities: bool) -> bool:
    # The server drops an empty object in some places and keeps it in others.
    if not isinstance(live, dict):
        return not desired and live is None
    return all(
        holds(value, live.get(key), quantities=quantities or key in _QUANTITY_FIELDS)
        for key, value in desired.items()
        if value is not None
    )


def _holds_list(desired: list[Any], live: Any, *, quantities: bool) -> bool:
    if not isinstance(live, list):
        return not desired and live is None
    if desired and all(isinstance(item, dict) and "name" in item for item in desired):
        named = {item.get("name"): item for item in live if isinstance(item, dict)}
        return all(holds(item, named.get(item["name"]), quantities=quantities) for item in desired)
    pairs = zip(desired, live, strict=False)
    return len(desired) == len(live) and all(holds(ours, theirs, quantities=quantities) for ours, theirs in pairs)


def quantity(value: Any) -> Decimal | Any:
    """Return a Kubernetes quantity as the number that an API server keeps; anything else unchanged.

    It rounds up to thousandths and holds no more than an int64.
    """
    text = str(value)
    suffix = next((s for s in (text[-2:], text[-1:]) if s in _SUFFIXES), "")
    try:
        number = Decimal(text.removesuffix(suffix)) * _SUFFIXES.get(suffix, Decimal(1))
        return (min(number, _LARGEST) * 1000).to_integral_value(ROUND_UP) / 1000
    except ArithmeticError:
        return value
