"""Values of a rollout that no candidate can meet, or that mean nothing: the API server and Python refuse them."""

from typing import Any

import pytest
from jsonschema import Draft7Validator

from shoal_schema.decoding import SpecError, decode
from shoal_schema.resource.service import InferenceServiceSpec
from tests.operator.samples import MINIMAL, with_fields
from tests.schema.test_crd import refused, root_schema

SHARES = ("-0.1", "1.1", "2", "NaN", "", "1e-3")
DECIMALS = ("-1", "-0.5", "NaN", "Infinity", "", "0x1")


def rollout(**fields: Any) -> Any:
    """Return a spec with a rollout."""
    return with_fields(MINIMAL, rollout={"strategy": "Canary", **fields})


def step(**fields: Any) -> Any:
    """Return a spec with one step."""
    return rollout(steps=[{"weight": 5, **fields}])


def tolerance(**fields: Any) -> Any:
    """Return a spec with tolerances of one output."""
    return rollout(compare={"outputs": {"y": fields}})


IMPOSSIBLE = [
    *(rollout(compare={"latency": {"maxRatio": each}}) for each in (*DECIMALS, "0", "0.0", "0.000", "0e5", "00.0e12")),
    *(rollout(compare={"errors": {"maxShare": each}}) for each in SHARES),
    *(tolerance(agreement=each) for each in SHARES),
    *(tolerance(maxAbsError=each) for each in DECIMALS),
    *(tolerance(maxRelError=each) for each in DECIMALS),
    *(tolerance(topK=each) for each in (0, -1, 1001)),
    *(step(shadow=each) for each in (0, -1, 101)),
    *(step(weight=each) for each in (0, -1, 101)),
    *(step(rows=each) for each in (0, -1)),
    *(step(minutes=each) for each in (0, -1)),
    rollout(steps=[]),
    rollout(steps=[{}]),
    *(rollout(sticky={"header": each}) for each in ("", "two words", "Connection", "content-length")),
    *(rollout(maxSurge=each) for each in (-1, 1001)),
    *(rollout(maxUnavailable=each) for each in (-1, 1001)),
    *(rollout(progressDeadlineSeconds=each) for each in (0, 9, -1)),
    *(rollout(minReadySeconds=each) for each in (-1, 3601)),
    *(rollout(drainDelaySeconds=each) for each in (-1, 601)),
    *(rollout(drainTimeoutSeconds=each) for each in (-1, 3601)),
    *(rollout(replacementTimeoutSeconds=each) for each in (-1, 10**6)),
]
POSSIBLE = [
    *(rollout(compare={"latency": {"maxRatio": each}}) for each in ("1.1", "1", "0.5", "0.001", "1e-1", "10", "1e2")),
    *(rollout(compare={"errors": {"maxShare": each}}) for each in ("0", "0.0", "1", "1.0", "0.001")),
    *(tolerance(agreement=each) for each in ("0", "0.999999999", "1")),
    tolerance(maxAbsError="0", maxRelError="0", topK=1),
    rollout(steps=[{"shadow": 1, "rows": 1, "minutes": 1}, {"weight": 100}]),
    rollout(sticky={"header": "x-user"}),
]


def faults(spec: Any) -> list[str]:
    """Return the faults that an API server finds."""
    schema = root_schema()["properties"]["spec"]
    return [each.message for each in Draft7Validator(schema).iter_errors(spec)] or refused(spec)


@pytest.mark.parametrize("spec", IMPOSSIBLE, ids=lambda spec: str(spec["rollout"]))
def test_an_impossible_value_is_refused(spec: Any) -> None:
    assert len(faults(spec)) == 1
    with pytest.raises(SpecError, match="rollout"):
        decode(InferenceServiceSpec, spec, "spec")


@pytest.mark.parametrize("spec", POSSIBLE, ids=lambda spec: str(spec["rollout"]))
def test_a_strict_or_loose_value_is_accepted(spec: Any) -> None:
    assert faults(spec) == []
    decode(InferenceServiceSpec, spec, "spec")


def test_a_ratio_of_zero_has_one_sentence() -> None:
    spec = rollout(compare={"latency": {"maxRatio": "0"}})
    (sentence,) = refused(spec)
    with pytest.raises(SpecError) as error:
        decode(InferenceServiceSpec, spec, "spec")
    assert sentence in str(error.value)
    assert "spec.rollout.compare.latency.maxRatio" in str(error.value)
