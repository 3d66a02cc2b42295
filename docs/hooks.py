"""Adapt pages to the documentation site. MkDocs calls the functions named ``on_*``."""

import posixpath
import re
from typing import Any

BOOSTS = {
    "decisions/": 0.1,
    "explanation/": 0.5,
    "how-to/": 2.0,
    "tutorials/": 2.0,
    "reference/cli.md": 2.0,
    "reference/settings.md": 2.0,
}
"""Weights of pages in the search, by the beginning of the path: records of decisions use the words of every subject."""

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Set the page's weight in the search, and replace links to files outside docs/ by their path.

    The site has only pages.
    """
    boost = next((each for start, each in BOOSTS.items() if page.file.src_uri.startswith(start)), 1.0)
    page.meta.setdefault("search", {})["boost"] = boost
    directory = posixpath.dirname(f"docs/{page.file.src_uri}")

    def without_link(link: re.Match[str]) -> str:
        target = link["target"]
        path = posixpath.normpath(posixpath.join(directory, target.partition("#")[0]))
        if "://" in target or target.startswith("#") or path.startswith("docs/"):
            return link[0]
        shown = link["text"].strip("`")
        return f"`{path}`" if shown == path else f"{link['text']} (`{path}`)"

    lines, in_fence = [], False
    for line in markdown.split("\n"):
        in_fence ^= line.lstrip().startswith("```")
        lines.append(line if in_fence else _LINK.sub(without_link, line))
    return "\n".join(lines)
