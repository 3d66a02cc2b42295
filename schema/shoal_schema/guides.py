"""Addresses of documentation pages, for messages."""

from typing import Final

# Generated from publisher.toml: the site, `docs` in a clone while nothing is published, or empty.
PAGES: Final = "docs"


def guide(page: str, before: str = "", after: str = "", *, pages: str = PAGES) -> str:
    """Return the address of a page between two texts; empty if packages are published and pages are not.

    Args:
        page: page without its suffix, such as "how-to/graphs".
        before: text before the address.
        after: text after the address.
        pages: URL of the site, or the directory of the pages.
    """
    if not pages:
        return ""
    return f"{before}{pages}/{page}{'/' if '://' in pages else '.md'}{after}"
