"""Load in ORCA's words, there and back."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.balance.orca import (
    JSON,
    TEXT,
    OrcaReport,
    load_line,
    load_value,
    parse_expected_wait_s,
    requested_format,
)


def test_the_forms_are_those_that_envoy_reads() -> None:
    load = OrcaReport(0.0125, 0.75, 120.5)
    assert load_line(load, TEXT) == (
        b"endpoint-load-metrics: TEXT application_utilization=0.7500, rps_fractional=120.500,"
        b" named_metrics.expected_wait_seconds=0.012500\r\n"
    )
    value = load_value(load, JSON)
    assert value.startswith(b"JSON ")
    assert orjson.loads(value[5:]) == {
        "application_utilization": 0.75,
        "rps_fractional": 120.5,
        "named_metrics": {"expected_wait_seconds": 0.0125},
    }


@pytest.mark.parametrize(
    ("asked", "form"), [(None, 0), (b"TEXT", TEXT), (b"text", TEXT), (b"JSON", JSON), (b"BIN", 0), (b"", 0)]
)
def test_a_supported_format_is_used_when_requested(asked: bytes | None, form: int) -> None:
    assert requested_format(asked) == form


@given(st.floats(0, 3600), st.floats(0, 1), st.floats(0, 1e6))
def test_what_is_reported_is_read(wait_s: float, utilization: float, rate: float) -> None:
    read = parse_expected_wait_s(load_value(OrcaReport(wait_s, utilization, rate), TEXT))
    assert read == pytest.approx(wait_s, abs=1e-6)


@given(st.binary(max_size=200))
def test_any_other_bytes_are_read_without_harm(value: bytes) -> None:
    for text in (value, b"TEXT " + value, b"TEXT named_metrics.expected_wait_seconds=" + value):
        assert isinstance(parse_expected_wait_s(text), float | None)


def test_an_endless_report_is_not_read() -> None:
    assert parse_expected_wait_s(b"TEXT named_metrics.expected_wait_seconds=1" + b" " * 2000) is None
