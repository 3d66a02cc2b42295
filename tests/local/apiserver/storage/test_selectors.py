from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.storage.selectors import (
    field_selector,
    label_selector,
    matches_label_selector,
)

LABELS = {"app": "web", "tier": "front"}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("app=web", True),
        ("app==web", True),
        ("app!=web", False),
        ("other!=web", True),
        ("app=web,tier=back", False),
        ("app in (web, api)", True),
        ("app notin (web,api),tier", False),
        ("other notin (x)", True),
        ("tier", True),
        ("!tier", False),
        ("!other", True),
        ("app in (web),tier in (front,back),!x", True),
        ("", True),
        ("x=", False),
    ],
)
def test_label_selectors(text: str, *, fits: bool) -> None:
    assert label_selector(text)(LABELS) is fits


def test_a_label_selector_that_is_none_is_refused() -> None:
    with pytest.raises(ApiError) as raised:
        label_selector("a in b")
    assert raised.value.code == 400


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("metadata.name=p", True),
        ("metadata.name!=p", False),
        ("status.phase=Running,metadata.namespace=a", True),
        ("spec.nodeName=", True),
        ("spec.nodeName!=", False),
        ("spec.hostNetwork=true", True),
    ],
)
def test_field_selectors(text: str, *, fits: bool) -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "a"},
        "spec": {"hostNetwork": True},
        "status": {"phase": "Running"},
    }
    allowed = ("status.phase", "spec.nodeName", "spec.hostNetwork")
    assert field_selector(text, allowed)(pod) is fits


def test_a_field_that_cannot_be_selected_by_is_named() -> None:
    with pytest.raises(ApiError, match=r"field label not supported: spec\.image"):
        field_selector("spec.image=a", ())


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "api"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({}, True),
        (None, False),
    ],
)
def test_selector_objects(selector: dict[str, Any] | None, *, fits: bool) -> None:
    assert matches_label_selector(selector, LABELS) is fits
