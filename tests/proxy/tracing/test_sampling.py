"""Which requests are traced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.tracing.sampling import Sampling, SpanContext, is_enabled, parse_traceparent, sampling_of
from shoal_schema.process.environment import SettingsError

IDS = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)
PARENT = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, sampled=True)


def test_a_clients_span_is_read_as_the_standard_writes_it() -> None:
    header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    assert parse_traceparent(header.encode()) == PARENT
    assert PARENT.traceparent == header


@given(*IDS, st.booleans())
def test_what_we_write_we_read(trace_id: int, span_id: int, sampled: bool) -> None:
    context = SpanContext(trace_id, span_id, sampled)
    assert parse_traceparent(context.traceparent.encode()) == context


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
        b"\xff" * 55,
    ],
)
def test_what_is_no_span_is_none(value: bytes) -> None:
    assert parse_traceparent(value) is None


@given(st.binary(max_size=80))
def test_no_bytes_of_a_client_raise(value: bytes) -> None:
    parse_traceparent(value)


def test_a_later_version_may_have_more_fields() -> None:
    assert parse_traceparent(b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more") == PARENT


@given(*IDS)
def test_a_clients_decision_counts_where_it_is_requested(trace_id: int, span_id: int) -> None:
    for sampled in (True, False):
        parent = SpanContext(trace_id, span_id, sampled)
        assert Sampling(by_parent=True, share=0.5).takes(parent, trace_id) is sampled
        assert Sampling(by_parent=False, share=0.0).takes(parent, trace_id) is False
        assert Sampling(by_parent=False, share=1.0).takes(parent, trace_id) is True


@given(st.integers(1, 2**128 - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_includes_a_smaller_one(trace_id: int, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert Sampling(share=large).takes(None, trace_id) or not Sampling(share=small).takes(None, trace_id)


def test_a_share_is_of_the_ids_low_half() -> None:
    half = Sampling(share=0.5)
    assert half.takes(None, (1 << 127) + (1 << 63) - 1)
    assert not half.takes(None, (1 << 63))


@pytest.mark.parametrize(
    ("environ", "sampling"),
    [
        ({}, Sampling(by_parent=True, share=1.0)),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, Sampling(by_parent=False, share=0.0)),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
            Sampling(by_parent=False, share=0.01),
        ),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, Sampling(by_parent=True, share=1.0)),
        ({"OTEL_TRACES_SAMPLER_ARG": "nonsense"}, Sampling()),
    ],
)
def test_samplers_are_those_of_the_sdk(environ: dict[str, str], sampling: Sampling) -> None:
    assert sampling_of(environ) == sampling


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "OTEL_TRACES_SAMPLER must be one of always_on"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"}, "must be 0 to 1"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "two"}, "must be 0 to 1, not 'two'"),
    ],
)
def test_what_makes_no_sense_is_named(environ: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        sampling_of(environ)


def test_without_a_collector_nothing_is_traced() -> None:
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}

    assert is_enabled(there)
    assert not is_enabled({"OTEL_EXPORTER_OTLP_ENDPOINT": ""})
    assert not is_enabled({**there, "OTEL_SDK_DISABLED": "TRUE"})
    assert not is_enabled({**there, "OTEL_TRACES_EXPORTER": "none"})
