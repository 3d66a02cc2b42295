"""The commands on the examples' own pages, as they stand there."""

import pytest

from tests.docs.following import PAGES, follow_page
from tests.docs.pages import read_page
from tests.docs.surroundings import ROOT, hindrance

EXAMPLES = [page for page in PAGES if page.startswith("examples/")]


@pytest.mark.parametrize("page", EXAMPLES)
def test_an_examples_page_serves_it_and_asks_it(page: str) -> None:
    commands = [block.text.split()[0] for block in read_page(ROOT / page, page)]

    made = [command for command in commands if command not in ("python", "torch-model-archiver")]
    assert made == ["shoal", "curl"]


@pytest.mark.integration
@pytest.mark.skipif(hindrance() is not None, reason=str(hindrance()))
@pytest.mark.parametrize("page", EXAMPLES)
def test_an_examples_page_can_be_followed(page: str) -> None:
    follow_page(page)
