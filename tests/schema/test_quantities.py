"""Quantities are read as Kubernetes reads them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.fields.quantities import Quantity, kept_quantity, parse_quantity, read_quantity

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("suffix", "factor"),
    [
        ("", "1"),
        ("n", "0.000000001"),
        ("u", "0.000001"),
        ("m", "0.001"),
        ("k", "1000"),
        ("M", "1000000"),
        ("G", "1000000000"),
        ("T", "1000000000000"),
        ("P", "1000000000000000"),
        ("E", "1000000000000000000"),
        ("Ki", "1024"),
        ("Mi", "1048576"),
        ("Gi", "1073741824"),
        ("Ti", "1099511627776"),
        ("Pi", "1125899906842624"),
        ("Ei", "1152921504606846976"),
        ("e3", "1000"),
        ("E-2", "0.01"),
        ("e+1", "10"),
    ],
)
@pytest.mark.parametrize("number", ["1", "2.5", ".5", "-3", "+0.25"])
def test_a_suffix_is_a_factor(number: str, suffix: str, factor: str) -> None:
    assert parse_quantity(f"{number}{suffix}") == Decimal(number) * Decimal(factor)


@given(st.integers(-LARGEST, LARGEST))
def test_a_whole_number_is_itself_written_or_not(number: int) -> None:
    assert parse_quantity(number) == parse_quantity(str(number)) == number


@pytest.mark.parametrize(
    "value",
    [LARGEST + 1, -LARGEST - 1, str(LARGEST + 1), f"-{LARGEST + 1}", "8Ei", "1e19", "", "1 Gi", "1KB", "much", "1e"],
)
def test_what_the_api_server_would_cut_or_not_take_is_rejected(value: str | int) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(value)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("1", "1"),
        ("1n", "0.001"),
        ("-1n", "-0.001"),
        ("1.0001", "1.001"),
        ("0.5", "0.5"),
        ("1e30", str(LARGEST)),
        (str(LARGEST), str(LARGEST)),
    ],
)
def test_the_api_server_keeps_thousandths_rounded_up_and_no_more_than_it_holds(written: str, kept: str) -> None:
    assert kept_quantity(written) == Decimal(kept)


@pytest.mark.parametrize("value", [1, "500m", "1Gi"])
def test_a_quantity_stays_as_it_was_written(value: str | int) -> None:
    quantity = read_quantity(value)

    assert quantity.written == value
    assert repr(quantity) == repr(value)
    assert quantity == Quantity(value)
    assert quantity != value
    assert len({quantity, Quantity(value)}) == 1
    assert quantity != Quantity("7")


@pytest.mark.parametrize("value", [True, 1.5, None, ["1"], "lots", LARGEST + 1])
def test_what_is_no_quantity_is_reported_what_would_be(value: object) -> None:
    with pytest.raises(ValueError, match="it must be a string or an integer like 500m, 2 or 1Gi, of at most"):
        read_quantity(value)
