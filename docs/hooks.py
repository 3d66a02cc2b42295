"""Adapt pages to the documentation site. MkDocs calls the functions named ``on_*``."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links to files outside docs/ by their path in the repository: the site has only pages."""
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
