"""Every block of every page, run or checked as it stands there. A cluster, and what takes long: e2e/test_pages.py."""

import re

import pytest

from tests.docs.following import LONG, PAGES, check, follow_page, needs_a_shell, runs
from tests.docs.pages import Block, PageError, read_page
from tests.docs.surroundings import ROOT, hindrance


def blocks_of(page: str) -> list[Block]:
    """Read a page while tests are collected; one that cannot be read fails in its own test."""
    try:
        return read_page(ROOT / page, page)
    except PageError:
        return []


BLOCKS = {page: blocks_of(page) for page in PAGES}
STORIES = [page for page in PAGES if any(needs_a_shell(b) and runs(b, with_cluster=False) for b in BLOCKS[page])]
LEFT_OUT = [block for blocks in BLOCKS.values() for block in blocks if "skip" in block.notes]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is_and_can_be_read(page: str) -> None:
    for block in read_page(ROOT / page, page):
        check(block)


@pytest.mark.integration
@pytest.mark.skipif(hindrance() is not None, reason=str(hindrance()))
@pytest.mark.parametrize("page", [page for page in STORIES if page not in LONG])
def test_a_page_can_be_followed(page: str) -> None:
    follow_page(page)


@pytest.mark.parametrize("block", LEFT_OUT, ids=lambda block: block.place)
def test_a_block_that_no_test_runs_says_why(block: Block) -> None:
    pytest.skip(f"{block.place}: {block.notes['skip']}")


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_that_a_page_names_is_there(page: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) | {"test-operator"}
    named = set(re.findall(r"(?:`|^|&& )make ([a-z][\w-]*)", (ROOT / page).read_text(), re.MULTILINE))

    assert named - targets == {name for name in named if name == "bench-"}


FOREIGN = {"kubernetes/__init__.py"}
"""A module of another project."""


@pytest.mark.parametrize("page", [page for page in PAGES if "/" not in page or page.startswith("docs/")])
def test_a_source_file_that_a_page_names_is_there(page: str) -> None:
    """From the root: pages of one component's folder name that component's own."""
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.py)`", (ROOT / page).read_text()))
    written = {block.notes["file"] for block in read_page(ROOT / page, page) if "file" in block.notes}

    assert {name for name in named - written - FOREIGN if not (ROOT / name).is_file()} == set()
