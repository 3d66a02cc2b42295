"""Others' autoscalers: what they ask for, and of which pods."""

import re

import pytest

from shoal_operator.manifests.desired import HPA, SCALED_OBJECT, desired_objects
from tests.operator.samples import BY_HPA, BY_KEDA, target, with_fields


def query(name: str = "cat", **changes: object) -> str:
    objects = desired_objects(target(with_fields(BY_KEDA, **changes), name=name))
    text: str = objects[SCALED_OBJECT]["spec"]["triggers"][0]["metadata"]["query"]
    return text


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        ("cat-6d4cf56db6-x7k2p", True),
        ("cat-big-6d4cf56db6-x7k2p", False),
        ("big-cat-6d4cf56db6-x7k2p", False),
        ("cat-x7k2p", False),
    ],
)
def test_a_query_is_of_the_pods_of_one_service_whatever_others_are_called(pod: str, counts: bool) -> None:
    found = re.search('pod=~"([^"]*)"', query())

    assert found is not None
    assert (re.fullmatch(found[1], pod) is not None) is counts


def test_custom_query_and_adapter_name_are_kept() -> None:
    assert query(scaling__external__scaledObject__query='sum(x{a="b"})') == 'sum(x{a="b"})'

    spec = with_fields(BY_HPA, scaling__external__horizontalPodAutoscaler__metricName="demand")
    (metric,) = desired_objects(target(spec))[HPA]["spec"]["metrics"]
    assert metric["pods"]["metric"] == {"name": "demand"}


@pytest.mark.parametrize(("percent", "hpa", "keda"), [(1, "10m", "0.01"), (80, "800m", "0.8"), (100, "1000m", "1")])
def test_both_aim_at_the_same_share(percent: int, hpa: str, keda: str) -> None:
    by_hpa, by_keda = (
        desired_objects(target(with_fields(spec, scaling__external__targetPercent=percent)))
        for spec in (BY_HPA, BY_KEDA)
    )

    assert by_hpa[HPA]["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == hpa
    assert by_keda[SCALED_OBJECT]["spec"]["triggers"][0]["metadata"]["threshold"] == keda
