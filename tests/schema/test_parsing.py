"""Parsing: a typed spec, or a sentence that names the field."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.decoding import SpecError, parse_spec
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.model import ModelFormat
from shoal_schema.resource.runtime import Device
from tests.operator.samples import EVERYTHING, MINIMAL, service, with_fields


def test_a_minimal_spec_gets_every_default() -> None:
    spec = parse_spec(service(MINIMAL))

    assert spec.batching.max_batch_size == 32
    assert spec.queue.max_rows is None
    assert spec.replicas == 1
    assert spec.scaling is None
    assert spec.rollout.max_surge == 1


def test_a_full_spec_is_read_whole() -> None:
    spec = parse_spec(service(EVERYTHING))

    assert spec.model.format is ModelFormat.HANDLER
    assert spec.runtime.device is Device.CUDA
    assert spec.batching.allowed_batch_sizes == (16, 1, 4)
    assert spec.model.volume is not None
    assert spec.model.volume.persistent_volume_claim is not None
    assert spec.route is not None
    assert spec.route.http_route is not None
    assert spec.route.http_route.parent_refs[0].section_name == "https"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "spec.model is required"),
        (with_fields(MINIMAL, batching__maxBatchSize=0), "spec.batching.maxBatchSize must be at least 1, not 0"),
        (with_fields(MINIMAL, batching__maxBatchSize="32"), "spec.batching.maxBatchSize must be of type int"),
        (with_fields(MINIMAL, batching__maxBatchSize=True), "spec.batching.maxBatchSize must be of type int"),
        (with_fields(MINIMAL, runtime__device="TPU"), "spec.runtime.device must be one of Auto, CPU, CUDA"),
        (with_fields(MINIMAL, model__uri="/models/cat"), "spec.model.uri must match"),
        (
            with_fields(MINIMAL, model__uri="ftp://cat"),
            "spec.model.uri: model.uri must begin with one of",
        ),
        (with_fields(MINIMAL, batching__size=3), "there is no field spec.batching.size; known are"),
        (
            with_fields(MINIMAL, queue__maxItems=3),
            "there is no field spec.queue.maxItems; it was renamed to spec.queue.maxRows",
        ),
        (
            with_fields(MINIMAL, runtime__forwardHeaders=["x-tenant"]),
            "there is no field spec.runtime.forwardHeaders; it was renamed to spec.proxy.forwardHeaders",
        ),
        (with_fields(MINIMAL, scaling={}), "spec.scaling.maxReplicas is required"),
        (with_fields(MINIMAL, queue=[]), "spec.queue must be of type object"),
        (with_fields(MINIMAL, proxy__forwardHeaders="x"), "spec.proxy.forwardHeaders must be of type array"),
        (with_fields(MINIMAL, proxy__forwardHeaders=[1]), r"spec.proxy.forwardHeaders\[0\] must be of type"),
        *(
            (with_fields(MINIMAL, proxy__forwardHeaders=["x-tenant", name]), r"forwardHeaders\[1\] must match")
            for name in ("", "a b", "a,b", "\U0001f600", "a:", "a\r\nb")
        ),
        (with_fields(MINIMAL, pod__priorityClassName="x" * 300), "at most 253 characters"),
    ],
)
def test_a_spec_that_cannot_work_is_named(spec: Json, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(service(spec))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(EVERYTHING)), JSON)
def test_whatever_stands_in_a_field_only_a_spec_error_comes_out(name: str, value: object) -> None:
    resource = service({**MINIMAL, name: value})

    with contextlib.suppress(SpecError):
        parse_spec(resource)


@pytest.mark.parametrize("value", ["abc", "9e30", 1.5])
def test_a_substitute_for_a_quantity_is_reported_once(value: Any) -> None:
    spec = with_fields(MINIMAL, runtime__resources={"limits": {"cpu": value}})

    with pytest.raises(SpecError, match=r"spec\.runtime\.resources\.limits\.cpu is .* quantity") as raised:
        parse_spec(service(spec))
    assert str(raised.value).count(repr(value)) == 1
