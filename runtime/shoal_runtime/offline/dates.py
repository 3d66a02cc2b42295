"""Dates and timestamps as ISO 8601 text. Pure."""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_FORM: Final = "%Y-%m-%dT%H:%M:%S"
_EMPTY_FRACTION: Final = r"\.0+([+-]\d\d:\d\d)?$"
_OFFSET: Final = r"([+-]\d\d)(\d\d)$"


def iso_texts(times: Any) -> Any:
    """Return dates, or timestamps with the offset of their time zone, as text; a fraction of zeros is left out."""
    if pa.types.is_date(times.type):
        return times.cast(pa.date32()).cast(pa.string())
    return pc.replace_substring_regex(_timestamps(times), _EMPTY_FRACTION, r"\1")


def _timestamps(times: Any) -> Any:
    if times.type.tz is None:
        return pc.strftime(times, format=_FORM)
    try:
        return pc.replace_substring_regex(pc.strftime(times, format=f"{_FORM}%z"), _OFFSET, r"\1:\2")
    except pa.ArrowInvalid:  # the machine has no database of time zones
        naive = times.cast(pa.int64()).cast(pa.timestamp(times.type.unit))
        return pc.binary_join_element_wise(pc.strftime(naive, format=_FORM), "+00:00", "")
