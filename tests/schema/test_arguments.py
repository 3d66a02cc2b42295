"""What options of the commands take, and the sentence for what they do not."""

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from shoal_schema.arguments import choice, integer, number, numbers, share
from shoal_schema.resource.traffic import BatchingPolicy


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (integer(), "-3", -3),
        (integer(1), "1", 1),
        (integer(0, 65535), "65535", 65535),
        (number(0, 60), "60", 60.0),
        (share(), "0", 0.0),
        (share(), "1", 1.0),
        (numbers(2), "1,0.5", (1.0, 0.5)),
        (numbers(1, least=0.0), "0", (0.0,)),
        (numbers(1, least=2.0), "2", (2.0,)),
        (integer(1), "1" + "0" * 30, 10**30),
        (integer(0, 65535), "0", 0),
        (choice(BatchingPolicy), "Fixed", BatchingPolicy.FIXED),
    ],
)
def test_what_fits_is_taken(kind: Callable[[str], object], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "allowed"),
    [
        (integer(), "x", "a whole number"),
        (integer(1), "0", "a whole number of at least 1"),
        (integer(0, 65535), "65536", "0 to 65535"),
        (number(0, 60, " s"), "0", "above 0 and at most 60 s"),
        (number(0, 60), "60.1", "above 0 and at most 60"),
        (share(), "nan", "a share of 0 to 1"),
        (share(), "1.01", "a share of 0 to 1"),
        (numbers(1), "0", "a positive number"),
        (numbers(1, least=0.0), "-1", "a number of at least 0"),
        (numbers(1), "inf", "a positive number"),
        (numbers(2), "1", "2 positive numbers, comma-separated"),
        (numbers(2), "1,-1", "2 positive numbers, comma-separated"),
        (numbers(2), "nan,1", "2 positive numbers, comma-separated"),
        (numbers(2), "1,2,3", "2 positive numbers, comma-separated"),
        (numbers(1, least=2.0), "1.9", "a positive number"),
        (choice(BatchingPolicy), "fixed", "one of Adaptive, Fixed, None"),
    ],
)
def test_what_does_not_is_told_what_would(kind: Callable[[str], object], text: str, allowed: str) -> None:
    with pytest.raises(ArgumentTypeError) as told:
        kind(text)
    assert str(told.value) == f"must be {allowed}, not {text}"
