"""What README and docs show of a cluster, and what takes long, as a reader would follow it.

The rest: tests/docs.
"""

import os
from pathlib import Path

import pytest

from tests.docs.following import LONG, PAGES, follow_page
from tests.docs.pages import read_page
from tests.docs.surroundings import ROOT, apart, hindrance

pytestmark = pytest.mark.timeout(900)


def needs_more(page: str) -> bool:
    return any("e2e" in block.notes for block in read_page(ROOT / page, page))


@pytest.mark.skipif(
    apart() is None, reason="a page's cluster needs networks and processes of its own: root, or unshare"
)
@pytest.mark.parametrize("page", [page for page in PAGES if needs_more(page)])
def test_a_page_can_be_followed_into_a_cluster(
    page: str, programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{programs['traefik'].parent}")
    follow_page(page, with_cluster=True)


@pytest.mark.skipif(hindrance() is not None, reason=str(hindrance()))
@pytest.mark.parametrize("page", LONG)
def test_a_long_page_can_be_followed(page: str) -> None:
    follow_page(page)
