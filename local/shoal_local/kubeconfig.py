"""Reads a kubeconfig: the server's URL, its certificate authority and the client's credentials."""

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class BadKubeconfigError(Exception):
    """The kubeconfig is invalid; the message names the fault."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and credentials of one API server."""

    url: str
    tls: ssl.SSLContext
    token: str


def read_kubeconfig(path: Path) -> Connection:
    """Return the connection of the file's current context.

    Raises BadKubeconfigError: a part is missing, or the user has no token. Raises OSError: the file, or a file that it
    names, cannot be read.
    """
    document = yaml.safe_load(path.read_text())
    if not isinstance(document, dict):
        raise BadKubeconfigError(f"{path} is not a kubeconfig: expected a mapping")
    # The current context names a cluster and a user.
    context = _named(document, "contexts", document.get("current-context", ""), path)["context"]
    cluster = _named(document, "clusters", context.get("cluster", ""), path)["cluster"]
    user = _named(document, "users", context.get("user", ""), path)["user"]
    if "token" not in user:
        raise BadKubeconfigError(f"{path}: the user has no token. Other credentials are not supported")
    # Inline data takes precedence over a file, as in kubectl.
    if data := cluster.get("certificate-authority-data"):
        authority = base64.b64decode(data).decode()
    else:
        authority = (path.parent / cluster.get("certificate-authority", "")).read_text()
    return Connection(cluster["server"], ssl.create_default_context(cadata=authority), user["token"])


def _named(document: dict[str, Any], part: str, name: str, path: Path) -> dict[str, Any]:
    for entry in document.get(part) or []:
        if entry.get("name") == name:
            return dict(entry)
    raise BadKubeconfigError(f"{path}: {part} has no entry named {name!r}")
