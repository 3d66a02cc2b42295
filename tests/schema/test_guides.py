"""Addresses of documentation pages in messages."""

import pytest

from shoal_schema.guides import guide


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ("docs", "Compile it (docs/how-to/a.md)."),
        ("https://shoal.example.com", "Compile it (https://shoal.example.com/how-to/a/)."),
        ("", "Compile it."),
    ],
)
def test_a_message_names_a_page_where_it_can_be_read(pages: str, said: str) -> None:
    assert f"Compile it{guide('how-to/a', ' (', ')', pages=pages)}." == said
