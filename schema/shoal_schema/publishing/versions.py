"""The version, in the files that cannot import it."""

import re

from shoal_schema.version import VERSION

VERSIONED = {
    "charts/shoal/Chart.yaml": r"(?m)^(?:version|appVersion): (.+)$",
    "local/pyproject.toml": r'"shoal\[operator,serve\]==(.+?)"',
}
"""Path in the repository -> pattern whose group is the version.

Chart and images are released together, and the local cluster runs components of its own version only.
"""


class NoVersionError(Exception):
    """A file has no version; the message names it."""


def versioned(path: str, text: str) -> str:
    """Return the text of a file, with Shoal's version at every place of a version.

    Raises:
        NoVersionError: the file has no such place.
    """
    # Only the group's text changes.
    updated, places = re.subn(VERSIONED[path], lambda match: match[0].replace(match[1], VERSION), text)
    if not places:
        raise NoVersionError(f"{path} has no version that matches {VERSIONED[path]}")
    return updated
