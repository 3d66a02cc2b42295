"""Write Shoal's version into files that cannot import it."""

import re

from shoal_schema.version import VERSION

VERSIONED = {
    "charts/shoal/Chart.yaml": r"(?m)^(?:version|appVersion): (.+)$",
    "local/pyproject.toml": r'"[\w.-]+\[operator,serve-light\]==(.+?)"',
}
"""Path in the repository -> pattern whose group is the version.

Chart and images are released together, and the local cluster runs components of its own version only.
"""


class NoVersionError(Exception):
    """Error of a file without a version; the message names the file."""


def versioned(path: str, text: str) -> str:
    """Return a file's text with Shoal's version wherever the pattern of ``path`` matches.

    Raises:
        NoVersionError: the pattern does not match.
    """
    # Only the group's text changes.
    updated, places = re.subn(VERSIONED[path], lambda match: match[0].replace(match[1], VERSION), text)
    if not places:
        raise NoVersionError(f"{path} has no version that matches {VERSIONED[path]}")
    return updated
