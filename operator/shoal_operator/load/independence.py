"""What pods say of their rows: whether each had a result of its own, as far as rows run again tell."""

from collections.abc import Mapping

from shoal_operator.load.reading import Reading


def record(known: Mapping[str, bool] | None, readings: Mapping[str, Reading]) -> dict[str, bool]:
    """Record what pods said.

    Args:
        known: what the last call returned.
        readings: by uid, of the ready pods. One that cannot be read keeps its last word.
    """
    said: dict[str, bool] = {}
    for uid, reading in readings.items():
        word = _word(reading) if reading.load is not None else (known or {}).get(uid)
        if word is not None:
            said[uid] = word
    return said


def _word(reading: Reading) -> bool | None:
    """Return whether a pod's rows are independent; None where it has run none again."""
    rows = None if reading.load is None else reading.load.rows
    if rows is None or (rows.independent and (rows.unchecked or not rows.checked)):
        return None
    return rows.independent
