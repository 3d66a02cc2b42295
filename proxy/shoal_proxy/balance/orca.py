"""Load reports in ORCA's response header, as text or JSON, as Envoy, vLLM and Triton send them.

A client requests the header by `endpoint-load-metrics-format: TEXT` or `JSON`. The expected wait is a named metric.
"""

from typing import Final

import orjson

from shoal_schema.interfaces.headers import LOAD

TEXT: Final = 1
JSON: Final = 2
_FORMATS: Final = {b"text": TEXT, b"json": JSON}
_WAIT: Final = "expected_wait_seconds"
_WAIT_TEXT: Final = f"named_metrics.{_WAIT}=".encode()
_LINE: Final = f"{LOAD}: ".encode()
_MAX_BYTES: Final = 1024


class OrcaReport:
    """The load of this replica, as reported by ORCA."""

    __slots__ = ("expected_wait_s", "requests_per_s", "utilization")

    def __init__(self, expected_wait_s: float, utilization: float, requests_per_s: float) -> None:
        self.expected_wait_s = expected_wait_s
        """Expected response time of a one-row request that arrives now."""
        self.utilization = utilization
        """0 to 1."""
        self.requests_per_s = requests_per_s


def requested_format(value: bytes | None) -> int:
    """Return the requested format: `TEXT`, `JSON`, or 0 for none or an unknown one."""
    return 0 if value is None else _FORMATS.get(value.lower(), 0)


def load_line(load: OrcaReport, form: int) -> bytes:
    """Return the load report as a header line."""
    return b"%b%b\r\n" % (_LINE, load_value(load, form))


def load_value(load: OrcaReport, form: int) -> bytes:
    """Return the load report as a header value."""
    if form == JSON:
        named = {_WAIT: round(load.expected_wait_s, 6)}
        return b"JSON " + orjson.dumps({
            "application_utilization": round(load.utilization, 4),
            "rps_fractional": round(load.requests_per_s, 3),
            "named_metrics": named,
        })  # fmt: skip
    return b"TEXT application_utilization=%.4f, rps_fractional=%.3f, %b%.6f" % (
        load.utilization,
        load.requests_per_s,
        _WAIT_TEXT,
        load.expected_wait_s,
    )


def parse_expected_wait_s(value: bytes | None) -> float | None:
    """Return the expected wait (s) in a text report; None if missing or malformed."""
    # The peer's header is not trusted.
    if value is None or len(value) > _MAX_BYTES or not value.startswith(b"TEXT "):
        return None
    _, found, rest = value.partition(_WAIT_TEXT)
    try:
        return float(rest.partition(b",")[0]) if found else None
    except ValueError:
        return None
