"""The version, in the files that cannot import it."""

import re

from shoal_schema.version import VERSION

VERSIONED = {
    "charts/shoal/Chart.yaml": r"(?m)^(?:version|appVersion): (.+)$",
    "local/pyproject.toml": r'"shoal\[operator,serve\]==(.+?)"',
}
"""Path below the repository -> where the version stands in it, as the pattern's one group.

Chart and images are released together, and the local cluster runs the components of its own version only.
"""


class NoVersionError(Exception):
    """A file has no place for the version; the message names it."""


def versioned(path: str, text: str) -> str:
    """Return the text of a file with Shoal's version in each of its places.

    Raises:
        NoVersionError: there is none.
    """
    told, places = re.subn(VERSIONED[path], lambda match: match[0].replace(match[1], VERSION), text)
    if not places:
        raise NoVersionError(f"{path} has no version where {VERSIONED[path]} would find one")
    return told
