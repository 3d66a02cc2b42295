"""Paths of a container that sees this machine's files as they are: its mount paths, replaced by what lies there.

Where no mounts can be made, a container is told the folders themselves: in its environment, its command
and its working directory. Paths that stand in its own code are not found.
"""

import re
from collections.abc import Callable, Mapping

_BEGINS = r"""(?:(?<![^\s'"`=:,;(\[{<>|&])|(?<=://))"""
"""A path begins a word, follows a sign that parts words, as in ``unix:/run`` or ``A=/tmp``, or is that of a ``file://``."""
_ENDS = r"(?![\w.-])"


def rewriter(paths: Mapping[str, str]) -> Callable[[str], str]:
    """Return what replaces mount paths in a text, the longest that fits, together with what lies below them.

    Args:
        paths: mount path to the file or folder of this machine.
    """
    known = {target.rstrip("/"): source for target, source in paths.items() if target.strip("/")}
    if not known:
        return lambda text: text
    longest_first = sorted(known, key=len, reverse=True)
    pattern = re.compile(_BEGINS + "(" + "|".join(map(re.escape, longest_first)) + ")" + _ENDS)
    return lambda text: pattern.sub(lambda found: known[found[1]], text)
