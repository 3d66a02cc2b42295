import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.schemas.decoding import QUANTITY, canonical_quantity, decoded
from shoal_local.apiserver.schemas.node import Node
from shoal_schema.fields.quantities import exact_quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        (0.5, "500m"),
        (1, "1"),
        ("1024Mi", "1Gi"),
        ("1500Mi", "1500Mi"),
        ("1.5Gi", "1536Mi"),
        ("1000", "1k"),
        ("1e3", "1k"),
        ("0", "0"),
        ("-1", "-1"),
        ("100n", "100n"),
    ],
)
def test_the_form_in_which_a_quantity_is_stored(value: str | float, text: str) -> None:
    assert canonical_quantity(value) == text


@given(st.integers(-(10**6), 10**6), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi", "e3", "u"]))
def test_the_stored_form_means_the_same_and_is_its_own(number: int, suffix: str) -> None:
    text = canonical_quantity(f"{number}{suffix}")
    assert exact_quantity(text) == exact_quantity(f"{number}{suffix}")
    assert canonical_quantity(text) == text


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "--1", "Mi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    node = Node({"$ref": f"#/$defs/{QUANTITY}"}, {QUANTITY: {"type": "string"}})
    with pytest.raises(ApiError, match="quantities must match"):
        decoded(text, node)
