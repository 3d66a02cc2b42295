"""Dates and timestamps as ISO 8601 text. Pure."""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_FORM: Final = "%Y-%m-%dT%H:%M:%S"
_EMPTY_FRACTION: Final = r"\.0+([+-]\d\d:\d\d)?$"
_MINUTE: Final = {"s": 60, "ms": 60 * 10**3, "us": 60 * 10**6, "ns": 60 * 10**9}
_OFFSET: Final = r"([+-]\d\d)(\d\d)$"


def iso_texts(times: Any) -> Any:
    """Format dates or timestamps as ISO 8601 text; a zero fraction is omitted.

    Local times whose zone offset has seconds (before about 1900) are written in UTC: ISO 8601 has no such offset.
    """
    if pa.types.is_date(times.type):
        return times.cast(pa.date32()).cast(pa.string())
    if times.type.tz is None:
        texts = pc.strftime(times, format=_FORM)
    else:
        try:
            texts = pc.replace_substring_regex(pc.strftime(times, format=f"{_FORM}%z"), _OFFSET, r"\1:\2")
            offset = pc.subtract(pc.local_timestamp(times).cast(pa.int64()), times.cast(pa.int64())).fill_null(0)
            odd = offset.to_numpy(zero_copy_only=False) % _MINUTE[times.type.unit] != 0
            if odd.any():
                texts = pc.if_else(pa.array(odd), _in_utc(times), texts)
        except pa.ArrowInvalid:  # the machine has no time zone database
            texts = _in_utc(times)
    return pc.replace_substring_regex(texts, _EMPTY_FRACTION, r"\1")


def _in_utc(times: Any) -> Any:
    naive = times.cast(pa.int64()).cast(pa.timestamp(times.type.unit))
    return pc.binary_join_element_wise(pc.strftime(naive, format=_FORM), "+00:00", "")
