"""What the examples' own pages show. Each is followed in e2e/test_pages.py."""

import pytest

from tests.docs.following import EXAMPLES
from tests.docs.pages import read_page
from tests.docs.surroundings import ROOT


@pytest.mark.parametrize("page", EXAMPLES)
def test_an_examples_page_serves_it_and_asks_it(page: str) -> None:
    commands = [block.text.split()[0] for block in read_page(ROOT / page, page)]

    made = [command for command in commands if command not in ("python", "torch-model-archiver")]
    assert made == ["shoal", "curl"]
